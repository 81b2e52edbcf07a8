#!/bin/sh
# Each stream of a cogroup in Kafka Streams has its own stream time: closed windows are sent again.
#
# Kafka Streams 4.4.0, in its TopologyTestDriver; needs a JDK and Maven. Windows of 10 ms without grace, fed from two
# topics: A at 1 and B at 50 of the first one, then C at 2 of the second one, which is late, since [0,10) has closed. If
# the streams are merged, C is dropped. Each stream of a cogroup drops late records by its own records' time, which is 2
# in the second one, so C is taken; but both write to one store, whose time is 50. Seen: without a record cache the row
# has expired there, so the window is sent again as C alone, and downstream A is lost; D at 3 then makes it D alone.
# With the cache, which is on by default, it is AC and ACD while the row has not been evicted. No record is counted as
# dropped. Behind `suppress(untilWindowCloses)` the "final" window is sent three times.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
cat >pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId>
  <artifactId>cogroup</artifactId>
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
cat >Cogroup.java <<'JAVA'
import static org.apache.kafka.common.serialization.Serdes.String;

import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;

public class Cogroup {
    static final TimeWindows WINDOWS = TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(10));
    static final Aggregator<String, String, String> APPEND = (key, value, text) -> text + value;

    interface Program {
        KTable<Windowed<String>, String> of(KStream<String, String> first, KStream<String, String> second);
    }

    public static void main(String[] arguments) {
        Program merged = (first, second) -> first.merge(second).groupByKey().windowedBy(WINDOWS)
            .aggregate(() -> "", APPEND, Materialized.with(String(), String()));
        Program cogroup = (first, second) -> first.groupByKey().cogroup(APPEND).cogroup(second.groupByKey(), APPEND)
            .windowedBy(WINDOWS).aggregate(() -> "", Materialized.with(String(), String()));
        Program last = (first, second) -> cogroup.of(first, second)
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()));
        run("merged, no cache", 0, merged);
        run("cogroup, no cache", 0, cogroup);
        run("cogroup, cache", 10_000_000, cogroup);
        run("suppressed cogroup, no cache", 0, last);
        run("suppressed cogroup, cache", 10_000_000, last);
    }

    static void run(String name, int cache, Program program) {
        var builder = new StreamsBuilder();
        var consumed = Consumed.with(String(), String());
        program.of(builder.stream("in", consumed), builder.stream("in2", consumed)).toStream()
            .filter((key, value) -> key.window().start() == 0)
            .map((key, value) -> KeyValue.pair(key.key(), value))
            .to("out", Produced.with(String(), String()));
        var settings = new Properties();
        settings.put("application.id", "cogroup");
        settings.put("bootstrap.servers", "none:1");
        settings.put("statestore.cache.max.bytes", cache);
        try (var driver = new TopologyTestDriver(builder.build(), settings)) {
            var in = driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
            var in2 = driver.createInputTopic("in2", new StringSerializer(), new StringSerializer());
            in.pipeInput("k", "A", 1);
            in.pipeInput("k", "B", 50);
            in2.pipeInput("k", "C", 2);
            in2.pipeInput("k", "D", 3);
            var out = driver.createOutputTopic("out", new StringDeserializer(), new StringDeserializer());
            var dropped = driver.metrics().entrySet().stream()
                .filter(metric -> metric.getKey().name().equals("dropped-records-total"))
                .mapToDouble(metric -> (double) metric.getValue().metricValue()).sum();
            System.out.println(name + ", [0,10): " + out.readValuesToList() + ", dropped " + (int) dropped);
        }
    }
}
JAVA
mvn --quiet --batch-mode -Dstyle.color=never dependency:copy-dependencies -DoutputDirectory=jars
java -cp 'jars/*' Cogroup.java 2>/dev/null | tee seen
grep -qxF 'merged, no cache, [0,10): [A], dropped 2' seen
grep -qxF 'cogroup, no cache, [0,10): [A, C, D], dropped 0' seen
grep -qxF 'cogroup, cache, [0,10): [A, AC, ACD], dropped 0' seen
grep -qxF 'suppressed cogroup, no cache, [0,10): [A, C, D], dropped 0' seen
grep -qxF 'suppressed cogroup, cache, [0,10): [A, AC, ACD], dropped 0' seen
