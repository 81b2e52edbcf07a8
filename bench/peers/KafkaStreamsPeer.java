import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.StandbyUpdateListener;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The measured programs in Kafka Streams: PROGRAM INPUT OUTPUT then settings as name=value. Every update is emitted.
 * With the setting http.port the store "counts" is asked over HTTP.
 */
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

    /** Counts by key; emits each new count with what the record said: the time at which it was sent. */
    static class EchoingCount extends ContextualProcessor<String, String, String, String> {
        KeyValueStore<String, Long> counts;

        @Override
        public void init(ProcessorContext<String, String> context) {
            super.init(context);
            counts = context.getStateStore("counts");
        }

        @Override
        public void process(Record<String, String> record) {
            Long before = counts.get(record.key());
            long count = before == null ? 1 : before + 1;
            counts.put(record.key(), count);
            context().forward(record.withValue(count + " " + record.value()));
        }
    }

    static KStream<String, String> echoingCount(StreamsBuilder builder, KStream<String, String> input) {
        var store = Stores.persistentKeyValueStore("counts");
        builder.addStateStore(Stores.keyValueStoreBuilder(store, TEXT, Serdes.Long()));
        return input.process(EchoingCount::new, "counts");
    }

    /** Each word of a line but the first, under itself, with that first word: the time at which the line was sent. */
    static List<KeyValue<String, String>> splitTimed(String line) {
        String[] words = line.split(" ");
        return Arrays.stream(words).skip(1).map(word -> KeyValue.pair(word, words[0])).toList();
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

    /** Prints a line when the restore of a partition begins and ends: the word, nanoseconds, and records. */
    static class SaysRestores implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
            System.out.println("start " + System.nanoTime() + " " + (end - start));
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long end, long count) {
        }

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long total) {
            System.out.println("end " + System.nanoTime() + " " + total);
        }
    }

    /** Prints a line when a standby has written a batch: the word, nanoseconds, and the offset after it. */
    static class SaysUpdates implements StandbyUpdateListener {
        @Override
        public void onUpdateStart(TopicPartition partition, String store, long start) {
        }

        @Override
        public void onBatchLoaded(
            TopicPartition partition, String store, TaskId task, long batchEnd, long batchSize, long end) {
            System.out.println("standby " + System.nanoTime() + " " + batchEnd);
        }

        @Override
        public void onUpdateSuspended(
            TopicPartition partition, String store, long offset, long end, SuspendReason reason) {
        }
    }

    /** Returns the count of a key as JSON; null for a key that has none. */
    static byte[] answer(KafkaStreams streams, String key) {
        ReadOnlyKeyValueStore<String, Long> counts = streams.store(
            StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.keyValueStore()));
        Long count = counts.get(key);
        if (count == null) {
            return null;
        }
        ObjectNode entry = JSON.createObjectNode().put("key", key).put("value", count);
        return entry.toString().getBytes(StandardCharsets.UTF_8);
    }

    /** Answers GET /v1/stores/counts/get?key=KEY on a port of this machine. */
    static void serve(KafkaStreams streams, int port) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 512);
        server.setExecutor(Executors.newFixedThreadPool(16, work -> {
            Thread thread = new Thread(work);
            thread.setDaemon(true);
            return thread;
        }));
        server.createContext("/v1/stores/counts/get", exchange -> {
            int status = 200;
            byte[] body = "{}".getBytes(StandardCharsets.UTF_8);
            try {
                byte[] found = answer(streams, exchange.getRequestURI().getQuery().substring("key=".length()));
                status = found == null ? 404 : 200;
                body = found == null ? body : found;
            } catch (InvalidStateStoreException error) {
                status = 503;
            }
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(status, body.length);
            try (OutputStream stream = exchange.getResponseBody()) {
                stream.write(body);
            }
        });
        server.start();
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        String program = arguments[0];
        Properties settings = new Properties();
        settings.put("auto.offset.reset", "earliest");
        settings.put("replication.factor", "1");
        settings.put("statestore.cache.max.bytes", "0");
        for (String each : Arrays.asList(arguments).subList(3, arguments.length)) {
            String[] parts = each.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        Object port = settings.remove("http.port");
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
            case "latency-count" -> echoingCount(builder, input);
            case "latency-word-count" -> echoingCount(builder, input.flatMap((key, line) -> splitTimed(line))
                .repartition(Repartitioned.with(TEXT, TEXT).withName("words")));
            case "stream-table-join" -> tableJoin(builder, input, "bench-other");
            case "stream-stream-join" -> streamJoin(builder, input, "bench-other");
            case "table" -> input.toTable(Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("kept")
                .withKeySerde(TEXT).withValueSerde(TEXT)).toStream().filter((key, value) -> value.length() < 10);
            default -> throw new IllegalArgumentException("unknown program " + program);
        };
        output.to(arguments[2], Produced.with(TEXT, TEXT));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setGlobalStateRestoreListener(new SaysRestores());
        streams.setStandbyUpdateListener(new SaysUpdates());
        streams.setStateListener((now, before) -> System.out.println(now + " " + System.currentTimeMillis() + " 0"));
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(10));
            ended.countDown();
        }));
        if (port != null) {
            serve(streams, Integer.parseInt(port.toString()));
        }
        streams.start();
        ended.await();
    }
}
