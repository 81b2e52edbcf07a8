#!/bin/sh
# Kafka Streams splits sessions whose records are in time: the row expires in the last millisecond that it is open.
#
# Kafka Streams 4.4.0, in its TopologyTestDriver; needs a JDK and Maven. Sessions with a gap of 5 ms and no grace:
# records A at 20 and C at 25 of one key are one session, [20,25]. Here another key has a record at 25 between them;
# none is late. The store's retention is the gap and the grace, so at 25 it does not find the row that ends at 20; a
# session closes only when stream time is past its end, gap and grace. Seen: two sessions, [20,20] and [25,25], without
# a record cache (`statestore.cache.max.bytes` is 0), and by default if sessions are sent when they close. The cache,
# which is on by default, also finds expired rows, until they are evicted: the session is [20,25] then, but [20,20] is
# not deleted, so A counts twice downstream. Sliding windows without a cache lose a record like this: [20,25] is C, not
# AC, and [21,26] is missing. A longer `Materialized.withRetention` repairs all of it.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
cat >pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId>
  <artifactId>sessions</artifactId>
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
cat >Sessions.java <<'JAVA'
import static org.apache.kafka.common.serialization.Serdes.String;

import java.time.Duration;
import java.util.List;
import java.util.Properties;
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
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

public class Sessions {
    static final Duration GAP = Duration.ofMillis(5);
    static final Duration DAY = Duration.ofDays(1);

    record Input(String key, String value, long time) {}

    interface Program {
        KTable<Windowed<String>, String> of(KGroupedStream<String, String> stream);
    }

    static final List<Input> ALONE = List.of(new Input("a", "A", 20), new Input("a", "C", 25));
    static final List<Input> RECORDS = List.of(
        new Input("a", "A", 20), new Input("b", "B", 25), new Input("a", "C", 25), new Input("z", "Z", 90));
    static final List<Input> MORE = List.of(
        new Input("a", "A", 20), new Input("b", "B", 24), new Input("b", "B", 25), new Input("a", "C", 25));

    public static void main(String[] arguments) {
        run("sessions of one key, cache", 10_000_000, ALONE,
            stream -> sessions(stream, EmitStrategy.onWindowUpdate(), null));
        run("sessions, no cache", 0, RECORDS, stream -> sessions(stream, EmitStrategy.onWindowUpdate(), null));
        run("sessions, cache", 10_000_000, RECORDS, stream -> sessions(stream, EmitStrategy.onWindowUpdate(), null));
        run("sessions, no cache, retention", 0, RECORDS,
            stream -> sessions(stream, EmitStrategy.onWindowUpdate(), DAY));
        run("sessions on close, cache", 10_000_000, RECORDS,
            stream -> sessions(stream, EmitStrategy.onWindowClose(), null));
        run("sessions on close, cache, retention", 10_000_000, RECORDS,
            stream -> sessions(stream, EmitStrategy.onWindowClose(), DAY));
        run("sliding, no cache", 0, MORE, stream -> sliding(stream, null));
        run("sliding, no cache, retention", 0, MORE, stream -> sliding(stream, DAY));
    }

    static KTable<Windowed<String>, String> sessions(
            KGroupedStream<String, String> stream, EmitStrategy emit, Duration retention) {
        Materialized<String, String, SessionStore<Bytes, byte[]>> store = Materialized.with(String(), String());
        return stream.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(GAP)).emitStrategy(emit)
            .reduce(String::concat, retention == null ? store : store.withRetention(retention));
    }

    static KTable<Windowed<String>, String> sliding(KGroupedStream<String, String> stream, Duration retention) {
        Materialized<String, String, WindowStore<Bytes, byte[]>> store = Materialized.with(String(), String());
        return stream.windowedBy(SlidingWindows.ofTimeDifferenceWithNoGrace(GAP))
            .reduce(String::concat, retention == null ? store : store.withRetention(retention));
    }

    static void run(String name, int cache, List<Input> records, Program program) {
        var builder = new StreamsBuilder();
        program.of(builder.stream("in", Consumed.with(String(), String())).groupByKey()).toStream()
            .filter((key, value) -> key.key().equals("a"))
            .map((key, value) -> KeyValue.pair("[" + key.window().start() + "," + key.window().end() + "]", value))
            .to("out", Produced.with(String(), String()));
        var settings = new Properties();
        settings.put("application.id", "sessions");
        settings.put("bootstrap.servers", "none:1");
        settings.put("statestore.cache.max.bytes", cache);
        try (var driver = new TopologyTestDriver(builder.build(), settings)) {
            var in = driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
            for (var record : records) {
                in.pipeInput(record.key, record.value, record.time);
            }
            var out = driver.createOutputTopic("out", new StringDeserializer(), new StringDeserializer());
            System.out.println(name + ": "
                + out.readKeyValuesToList().stream().map(row -> row.key + "=" + row.value).toList());
        }
    }
}
JAVA
mvn --quiet --batch-mode -Dstyle.color=never dependency:copy-dependencies -DoutputDirectory=jars
java -cp 'jars/*' Sessions.java 2>/dev/null | tee seen
grep -qxF 'sessions of one key, cache: [[20,20]=A, [20,20]=null, [20,25]=AC]' seen
grep -qxF 'sessions, no cache: [[20,20]=A, [25,25]=C]' seen
grep -qxF 'sessions, cache: [[20,20]=A, [20,25]=AC]' seen
grep -qxF 'sessions, no cache, retention: [[20,20]=A, [20,20]=null, [20,25]=AC]' seen
grep -qxF 'sessions on close, cache: [[20,20]=A, [25,25]=C]' seen
grep -qxF 'sessions on close, cache, retention: [[20,25]=AC]' seen
grep -qxF 'sliding, no cache: [[15,20]=A, [20,25]=C]' seen
grep -qxF 'sliding, no cache, retention: [[15,20]=A, [21,26]=C, [20,25]=AC]' seen
