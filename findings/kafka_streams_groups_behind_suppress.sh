#!/bin/sh
# A group behind `suppress` in Kafka Streams takes out of its sum what was never put in.
#
# Kafka Streams 4.4.0, in its TopologyTestDriver, with its record cache as it is by default; needs a JDK and Maven.
# Counts by key are suppressed until a time limit, regrouped, and summed. `suppress` lets one update of a key go in place
# of several. With it goes the old value of the last one that came, which nobody has seen, and not that of what was let
# go before; a KTable.groupBy behind it subtracts that. Here two keys of one group have 3 records each. Seen: the sum is
# 3 after the first key and 4 after the second one, not 6: the count 2 of the second key was kept back, and subtracted.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
cat >pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId>
  <artifactId>groups</artifactId>
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
cat >Groups.java <<'JAVA'
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;

public class Groups {
    public static void main(String[] arguments) {
        var builder = new StreamsBuilder();
        builder.stream("in", Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey().count()
            .suppress(Suppressed.untilTimeLimit(Duration.ofSeconds(10), Suppressed.BufferConfig.unbounded()))
            .groupBy((key, count) -> KeyValue.pair("all", count), Grouped.with(Serdes.String(), Serdes.Long()))
            .reduce(Long::sum, (sum, count) -> sum - count, Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream().to("out", Produced.with(Serdes.String(), Serdes.Long()));
        var settings = new Properties();
        settings.put("application.id", "groups");
        settings.put("bootstrap.servers", "none:1");
        try (var driver = new TopologyTestDriver(builder.build(), settings)) {
            var in = driver.createInputTopic("in", new StringSerializer(), new StringSerializer());
            var out = driver.createOutputTopic("out", new StringDeserializer(), new LongDeserializer());
            for (var time = 0; time < 3; time++) {
                in.pipeInput("a", "x", time);
                in.pipeInput("b", "x", time);
            }
            in.pipeInput("c", "x", 60_000);
            System.out.println("sums of the group, of two keys with 3 records each: " + out.readValuesToList());
        }
    }
}
JAVA
mvn --quiet --batch-mode -Dstyle.color=never dependency:copy-dependencies -DoutputDirectory=jars
java -cp 'jars/*' Groups.java 2>/dev/null | tee seen
grep -q ': \[3, 4\]$' seen
