import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.Stores;

/** The measured programs in Kafka Streams: PROGRAM INPUT OUTPUT then settings as name=value. Every update is emitted. */
public class KafkaStreamsPeer {
    static final Serde<String> TEXT = Serdes.String();
    static final ObjectMapper JSON = new ObjectMapper();

    static JsonNode parse(String text) {
        try {
            return JSON.readTree(text);
        } catch (java.io.IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static KeyValue<String, String> shorten(JsonNode event) {
        ObjectNode kept = JSON.createObjectNode();
        kept.put("user", event.get("user").asText());
        kept.put("doubled", event.get("v").asDouble() * 2);
        kept.put("kind", event.get("kind").asText());
        return KeyValue.pair(event.get("user").asText(), kept.toString());
    }

    static KStream<String, String> count(KStream<String, String> grouped, Grouped<String, String> as, boolean byValue) {
        var store = Materialized.<String, Long>as(Stores.persistentKeyValueStore("counts"))
            .withKeySerde(TEXT).withValueSerde(Serdes.Long());
        var groups = byValue ? grouped.groupBy((key, word) -> word, as) : grouped.groupByKey(as);
        return groups.count(store).toStream().mapValues(number -> Long.toString(number));
    }

    static KStream<String, String> windowedCount(KStream<String, String> input, Grouped<String, String> as) {
        var size = Duration.ofMinutes(1);
        var kept = Duration.ofMinutes(10);
        var store = Materialized.<String, Long>as(Stores.persistentWindowStore("counts", kept, size, false))
            .withKeySerde(TEXT).withValueSerde(Serdes.Long());
        return input.groupByKey(as).windowedBy(TimeWindows.ofSizeAndGrace(size, kept.minus(size))).count(store)
            .toStream((window, number) -> window.key()).mapValues(number -> Long.toString(number));
    }

    static KStream<String, String> tableJoin(StreamsBuilder builder, KStream<String, String> input, String other) {
        var store = Materialized.<String, String>as(Stores.persistentKeyValueStore("users"))
            .withKeySerde(TEXT).withValueSerde(TEXT);
        var users = builder.table(other, Consumed.with(TEXT, TEXT), store);
        return input.leftJoin(users, (event, user) -> user + " " + event.length());
    }

    static KStream<String, String> streamJoin(StreamsBuilder builder, KStream<String, String> input, String other) {
        var within = JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(12), Duration.ofSeconds(10));
        return input.join(builder.stream(other, Consumed.with(TEXT, TEXT)), (one, two) -> one + " " + two, within,
            StreamJoined.with(TEXT, TEXT, TEXT).withStoreName("joined"));
    }

    public static void main(String[] arguments) throws InterruptedException {
        String program = arguments[0];
        Properties settings = new Properties();
        settings.put("auto.offset.reset", "earliest");
        settings.put("replication.factor", "1");
        settings.put("statestore.cache.max.bytes", "0");
        for (String each : Arrays.asList(arguments).subList(3, arguments.length)) {
            String[] parts = each.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> input = builder.stream(arguments[1], Consumed.with(TEXT, TEXT));
        Grouped<String, String> text = Grouped.with(TEXT, TEXT);
        KStream<String, String> output = switch (program.replace("dsl-", "")) {
            case "count" -> count(input, text, false);
            case "windowed-count" -> windowedCount(input, text);
            case "filter-map" -> input.mapValues(KafkaStreamsPeer::parse)
                .filter((key, event) -> event.get("v").asDouble() >= 10.0)
                .map((key, event) -> shorten(event));
            case "word-count" -> count(input.flatMapValues(line -> Arrays.asList(line.split(" "))), text, true);
            case "stream-table-join" -> tableJoin(builder, input, "bench-other");
            case "stream-stream-join" -> streamJoin(builder, input, "bench-other");
            default -> throw new IllegalArgumentException("unknown program " + program);
        };
        output.to(arguments[2], Produced.with(TEXT, TEXT));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(10));
            ended.countDown();
        }));
        streams.start();
        ended.await();
    }
}
