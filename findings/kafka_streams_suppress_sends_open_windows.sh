#!/bin/sh
# `suppress(untilWindowCloses)` of Kafka Streams sends session and sliding windows 1 ms early: more than once.
#
# Kafka Streams 4.4.0, in its TopologyTestDriver, with its record cache as it is by default; needs a JDK and Maven. Ends
# of sessions and sliding windows are inclusive: their aggregations take records until stream time is past the end (and
# the gap, and the grace), but `suppress` sends them when it reaches it, which is right for tumbling and hopping windows
# only. Seen, all without grace: of sliding windows of 5 ms, three records at 20 give three "final" results of [15,20]:
# A, AB, ABC; a window is sent with the record that it ends with, so nothing of it is suppressed. A session with a gap
# of 5 ms, A at 20, is sent at 25, and again as AB when B comes at 20, or, as another session, when B comes at 25, in
# time, and the first one is not deleted. A tumbling window is sent once, and so are all of them with
# `EmitStrategy.onWindowClose`.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
cat >pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId>
  <artifactId>suppress</artifactId>
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
cat >Suppress.java <<'JAVA'
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
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

public class Suppress {
    static final Duration SIZE = Duration.ofMillis(5);
    static final Duration DAY = Duration.ofDays(1);

    record Input(String key, String value, long time) {}

    interface Program {
        KTable<Windowed<String>, String> of(KGroupedStream<String, String> stream, EmitStrategy emit);
    }

    public static void main(String[] arguments) {
        var end = new Input("z", "Z", 90);
        var sameTime = List.of(new Input("a", "A", 20), new Input("a", "B", 20), new Input("a", "C", 20), end);
        var late = List.of(new Input("a", "A", 20), new Input("z", "Z", 25), new Input("a", "B", 20), end);
        var inTime = List.of(new Input("a", "A", 20), new Input("z", "Z", 25), new Input("a", "B", 25), end);
        Program tumbling = (stream, emit) -> stream.windowedBy(TimeWindows.ofSizeWithNoGrace(SIZE))
            .emitStrategy(emit).reduce(String::concat, windows());
        Program sliding = (stream, emit) -> stream.windowedBy(SlidingWindows.ofTimeDifferenceWithNoGrace(SIZE))
            .emitStrategy(emit).reduce(String::concat, windows());
        Program sessions = (stream, emit) -> stream.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(SIZE))
            .emitStrategy(emit).reduce(String::concat, sessionStore());
        run("tumbling", sameTime, tumbling);
        run("sliding", sameTime, sliding);
        run("sessions, B at 20", late, sessions);
        run("sessions, B at 25", inTime, sessions);
    }

    /** The retention is no matter of this finding: rows that expire make other differences. */
    static Materialized<String, String, WindowStore<Bytes, byte[]>> windows() {
        Materialized<String, String, WindowStore<Bytes, byte[]>> store = Materialized.with(String(), String());
        return store.withRetention(DAY);
    }

    static Materialized<String, String, SessionStore<Bytes, byte[]>> sessionStore() {
        Materialized<String, String, SessionStore<Bytes, byte[]>> store = Materialized.with(String(), String());
        return store.withRetention(DAY);
    }

    static void run(String name, List<Input> records, Program program) {
        send(name + ", suppress", records, stream -> program.of(stream, EmitStrategy.onWindowUpdate())
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())));
        send(name + ", on close", records, stream -> program.of(stream, EmitStrategy.onWindowClose()));
    }

    interface Table {
        KTable<Windowed<String>, String> of(KGroupedStream<String, String> stream);
    }

    static void send(String name, List<Input> records, Table table) {
        var builder = new StreamsBuilder();
        table.of(builder.stream("in", Consumed.with(String(), String())).groupByKey()).toStream()
            .filter((key, value) -> key.key().equals("a"))
            .map((key, value) -> KeyValue.pair("[" + key.window().start() + "," + key.window().end() + "]", value))
            .to("out", Produced.with(String(), String()));
        var settings = new Properties();
        settings.put("application.id", "suppress");
        settings.put("bootstrap.servers", "none:1");
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
java -cp 'jars/*' Suppress.java 2>/dev/null | tee seen
grep -qxF 'tumbling, suppress: [[20,25]=ABC]' seen
grep -qxF 'tumbling, on close: [[20,25]=ABC]' seen
grep -qxF 'sliding, suppress: [[15,20]=A, [15,20]=AB, [15,20]=ABC]' seen
grep -qxF 'sliding, on close: [[15,20]=ABC]' seen
grep -qxF 'sessions, B at 20, suppress: [[20,20]=A, [20,20]=AB]' seen
grep -qxF 'sessions, B at 20, on close: [[20,20]=AB]' seen
grep -qxF 'sessions, B at 25, suppress: [[20,20]=A, [20,25]=AB]' seen
grep -qxF 'sessions, B at 25, on close: [[20,25]=AB]' seen
