#!/bin/sh
# `EmitStrategy.onWindowClose` of Kafka Streams never sends some sessions, and windows that a quiet hour follows.
#
# Kafka Streams 4.4.0, in its TopologyTestDriver, with its record cache as it is by default where nothing else is said;
# needs a JDK and Maven. Windows of 5 minutes (sessions have that gap) without grace have records at minutes 61 and 62;
# the next ones, of another key, come at minutes 120 and 180. An aggregation puts each record, which moves its store's
# time, and then looks for windows that have closed. By default the store keeps rows of one or two window sizes and the
# grace, so they have expired then. Seen: the session and the sliding windows that were open, [57,62] and [61,66], are
# never sent, and no record is counted as dropped. A session is also lost while a record comes each minute, without a
# quiet time, if a segment of the store ends just after it. Tumbling windows are sent with the cache and lost without it
# (`statestore.cache.max.bytes` is 0). A `Materialized.withRetention` that is longer than the quiet time repairs all of
# it.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
cat >pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId>
  <artifactId>closing</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-streams-test-utils</artifactId>
      <version>4.4.0</version>
    </dependency>
  </dependencies>
</project>
POM
cat >Closing.java <<'JAVA'
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.stream.IntStream;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

public class Closing {
    static final Duration SIZE = Duration.ofMinutes(5);
    static final Duration DAY = Duration.ofDays(1);

    record Input(String key, int minute) {}

    static final List<Input> QUIET = List.of(
        new Input("a", 61), new Input("a", 62), new Input("z", 120), new Input("z", 180));
    static final List<Input> STEADY = IntStream.range(61, 90)
        .mapToObj(minute -> new Input(minute < 65 ? "a" : "z", minute)).toList();

    interface Program {
        KTable<Windowed<String>, Long> of(KGroupedStream<String, String> stream);
    }

    public static void main(String[] arguments) {
        run("sessions", true, QUIET, stream -> sessions(stream, null));
        run("sessions, no quiet time", true, STEADY, stream -> sessions(stream, null));
        run("sessions, no quiet time, retention", true, STEADY, stream -> sessions(stream, DAY));
        run("sliding", true, QUIET, stream -> sliding(stream, null));
        run("tumbling", true, QUIET, stream -> tumbling(stream, null));
        run("tumbling, no cache", false, QUIET, stream -> tumbling(stream, null));
        run("sessions, retention", true, QUIET, stream -> sessions(stream, DAY));
        run("sliding, retention", true, QUIET, stream -> sliding(stream, DAY));
        run("tumbling, no cache, retention", false, QUIET, stream -> tumbling(stream, DAY));
    }

    static KTable<Windowed<String>, Long> sessions(KGroupedStream<String, String> stream, Duration retention) {
        Materialized<String, Long, SessionStore<Bytes, byte[]>> store =
            Materialized.with(Serdes.String(), Serdes.Long());
        return stream.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(SIZE))
            .emitStrategy(EmitStrategy.onWindowClose())
            .count(retention == null ? store : store.withRetention(retention));
    }

    static KTable<Windowed<String>, Long> sliding(KGroupedStream<String, String> stream, Duration retention) {
        return stream.windowedBy(SlidingWindows.ofTimeDifferenceWithNoGrace(SIZE))
            .emitStrategy(EmitStrategy.onWindowClose()).count(windows(retention));
    }

    static KTable<Windowed<String>, Long> tumbling(KGroupedStream<String, String> stream, Duration retention) {
        return stream.windowedBy(TimeWindows.ofSizeWithNoGrace(SIZE))
            .emitStrategy(EmitStrategy.onWindowClose()).count(windows(retention));
    }

    static Materialized<String, Long, WindowStore<Bytes, byte[]>> windows(Duration retention) {
        Materialized<String, Long, WindowStore<Bytes, byte[]>> store =
            Materialized.with(Serdes.String(), Serdes.Long());
        return retention == null ? store : store.withRetention(retention);
    }

    static void run(String name, boolean cache, List<Input> records, Program program) {
        var builder = new StreamsBuilder();
        program.of(builder.stream("in", Consumed.with(Serdes.String(), Serdes.String())).groupByKey()).toStream()
            .filter((key, count) -> key.key().equals("a"))
            .map((key, count) -> KeyValue.pair(
                "[" + key.window().start() / 60_000 + "," + key.window().end() / 60_000 + "]", count))
            .to("out", Produced.with(Serdes.String(), Serdes.Long()));
        var settings = new Properties();
        settings.put("application.id", "closing");
        settings.put("bootstrap.servers", "none:1");
        if (!cache) {
            settings.put("statestore.cache.max.bytes", 0);
        }
        try (var driver = new TopologyTestDriver(builder.build(), settings)) {
            var in = driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
            for (var record : records) {
                in.pipeInput(record.key, "x", Duration.ofMinutes(record.minute).toMillis());
            }
            var out = driver.createOutputTopic("out", new StringDeserializer(), new LongDeserializer());
            var dropped = driver.metrics().entrySet().stream()
                .filter(metric -> metric.getKey().name().equals("dropped-records-total"))
                .mapToDouble(metric -> (double) metric.getValue().metricValue()).sum();
            System.out.println(name + ": " + out.readKeyValuesToList().stream()
                .map(row -> row.key + "=" + row.value).toList() + ", dropped " + (int) dropped);
        }
    }
}
JAVA
mvn --quiet --batch-mode -Dstyle.color=never dependency:copy-dependencies -DoutputDirectory=jars
java -cp 'jars/*' Closing.java 2>/dev/null | tee seen
grep -qxF 'sessions: [], dropped 0' seen
grep -qxF 'sessions, no quiet time: [], dropped 0' seen
grep -qxF 'sessions, no quiet time, retention: [[61,64]=4], dropped 0' seen
grep -qxF 'sliding: [[56,61]=1], dropped 0' seen
grep -qxF 'tumbling: [[60,65]=2], dropped 0' seen
grep -qxF 'tumbling, no cache: [], dropped 0' seen
grep -qxF 'sessions, retention: [[61,62]=2], dropped 0' seen
grep -qxF 'sliding, retention: [[56,61]=1, [57,62]=2, [61,66]=1], dropped 0' seen
grep -qxF 'tumbling, no cache, retention: [[60,65]=2], dropped 0' seen
