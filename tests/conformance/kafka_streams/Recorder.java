import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.UUID;
import java.util.function.Function;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyConfig;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Recorder IN OUT DIRECTORY: runs cases of the topology `steps` (tests/conformance/steps.py) in Kafka Streams'
 * TopologyTestDriver. IN is a list of cases; OUT gets, for each, `describe` and `expected`, or why it was `refused`.
 * State is kept below DIRECTORY.
 */
@SuppressWarnings({"unchecked", "rawtypes"})
public final class Recorder {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Serde<Object> KEY = (Serde) Serdes.String();
    private static final Serde<Object> VALUE = new AnySerde();
    private static final ValueJoiner<Object, Object, Object> JOINER = (one, other) -> text(one) + "|" + text(other);
    private static final Initializer<Object> EMPTY = () -> "";
    private static final Merger<Object, Object> MERGER = (key, one, other) -> one + "&" + other;
    private static final Reducer<Object> REDUCER = Recorder::reduced;

    private final StreamsBuilder builder;
    private final List<Object> made = new ArrayList<>();

    private Recorder(StreamsBuilder builder) {
        this.builder = builder;
    }

    public static void main(String[] arguments) throws Exception {
        ArrayNode results = JSON.createArrayNode();
        for (JsonNode each : JSON.readTree(new File(arguments[0]))) {
            results.add(record(each, Path.of(arguments[2])));
        }
        JSON.writeValue(new File(arguments[1]), results);
        System.exit(0); // RocksDB's threads would keep the process.
    }

    private static ObjectNode record(JsonNode given, Path directory) {
        ObjectNode result = JSON.createObjectNode().put("name", given.get("name").asText());
        JsonNode config = given.path("config");
        Properties settings = settings(config, directory);
        Topology topology;
        try {
            Recorder recorder = new Recorder(new StreamsBuilder(new TopologyConfig(new StreamsConfig(settings))));
            for (JsonNode step : given.get("params").get("steps")) {
                recorder.made.add(recorder.result(step));
            }
            topology = recorder.builder.build(settings);
        } catch (Exception error) {
            return result.put("refused", error.getClass().getSimpleName() + ": " + error.getMessage());
        }
        result.put("describe", topology.describe().toString());
        if (given.has("inputs")) {
            Instant start = Instant.ofEpochMilli(config.path("initial_wall_clock_ms").asLong(0));
            try (TopologyTestDriver driver = new TopologyTestDriver(topology, settings, start)) {
                result.set("expected", play(given, driver));
            }
        }
        return result;
    }

    private static Properties settings(JsonNode config, Path directory) {
        Properties found = new Properties();
        found.put("application.id", "conformance");
        found.put("bootstrap.servers", "none:1");
        found.put("default.key.serde", Serdes.StringSerde.class);
        found.put("default.value.serde", AnySerde.class);
        found.put("statestore.cache.max.bytes", config.path("cache_max_bytes").asLong(0));
        found.put("state.dir", directory.resolve(UUID.randomUUID().toString()).toString());
        found.put(
            "dsl.store.suppliers.class",
            config.path("store_type").asText().equals("in_memory")
                ? BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class
                : BuiltInDslStoreSuppliers.RocksDBDslStoreSuppliers.class);
        found.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
        found.put("__emit.interval.ms.kstreams.windowed.aggregation__", 0L);
        if (config.path("optimize").asBoolean(false)) {
            found.put("topology.optimization", "all");
        }
        if (config.path("timestamp_extractor").asText().equals("digits")) {
            found.put("default.timestamp.extractor", DigitsOrLater.class);
        }
        return found;
    }

    private static ObjectNode play(JsonNode given, TopologyTestDriver driver) {
        ObjectNode expected = JSON.createObjectNode();
        ArrayNode outputs = expected.putArray("outputs");
        Map<String, TestInputTopic<String, Object>> inputs = new HashMap<>();
        Map<String, TestOutputTopic<String, Object>> sinks = new TreeMap<>();
        for (JsonNode step : given.get("params").get("steps")) {
            if (step.get("op").asText().equals("to")) {
                String topic = step.get("topic").asText();
                sinks.put(topic, driver.createOutputTopic(topic, new StringDeserializer(), VALUE.deserializer()));
            }
        }
        int number = 0;
        for (JsonNode op : given.get("inputs")) {
            try {
                if (op.get("op").asText().equals("pipe")) {
                    inputs.computeIfAbsent(
                            op.get("topic").asText(),
                            topic -> driver.createInputTopic(topic, new StringSerializer(), VALUE.serializer()))
                        .pipeInput(input(op));
                } else {
                    driver.advanceWallClockTime(Duration.ofMillis(op.get("ms").asLong()));
                }
            } catch (Exception error) {
                Throwable root = error;
                while (root.getCause() != null) {
                    root = root.getCause();
                }
                expected.putObject("error").put("op", number).put("type", error.getClass().getName())
                    .put("root", root.getClass().getName()).put("message", root.getMessage());
            }
            for (Map.Entry<String, TestOutputTopic<String, Object>> sink : sinks.entrySet()) {
                while (!sink.getValue().isEmpty()) {
                    outputs.add(output(number, sink.getKey(), sink.getValue().readRecord()));
                }
            }
            if (expected.has("error")) {
                return expected;
            }
            number++;
        }
        double dropped = driver.metrics().entrySet().stream()
            .filter(each -> each.getKey().name().equals("dropped-records-total"))
            .mapToDouble(each -> ((Number) each.getValue().metricValue()).doubleValue()).sum();
        expected.putObject("metrics").put("dropped_records", (long) dropped);
        return expected;
    }

    private static TestRecord<String, Object> input(JsonNode op) {
        RecordHeaders headers = new RecordHeaders();
        for (JsonNode header : op.path("headers")) {
            headers.add(header.get(0).asText(), header.get(1).isNull() ? null : bytes(header.get(1).asText()));
        }
        String key = op.get("key").isNull() ? null : op.get("key").asText();
        return new TestRecord<>(key, plain(op.get("value")), headers, op.get("ts").asLong());
    }

    private static ObjectNode output(int number, String topic, TestRecord<String, Object> record) {
        ObjectNode found = JSON.createObjectNode().put("op", number).put("topic", topic).put("key", record.key());
        found.set("value", JSON.valueToTree(record.value()));
        found.put("ts", record.timestamp());
        for (Header header : record.headers()) {
            String value = header.value() == null ? null : new String(header.value(), StandardCharsets.UTF_8);
            found.withArray("headers").addArray().add(header.key()).add(value);
        }
        return found;
    }

    // ---------------------------------------------------------------- steps

    private Object result(JsonNode step) {
        Object[] of = parents(step);
        KStream stream = of.length > 0 && of[0] instanceof KStream ? (KStream) of[0] : null;
        KTable table = of.length > 0 && of[0] instanceof KTable ? (KTable) of[0] : null;
        String name = step.path("name").asText(null);
        Materialized kept = step.has("store") ? kept(step).withKeySerde(KEY).withValueSerde(VALUE) : null;
        switch (step.get("op").asText()) {
            case "stream":
                return builder.stream(step.get("topic").asText(), Consumed.with(KEY, VALUE));
            case "table":
                Consumed<Object, Object> consumed = Consumed.with(KEY, VALUE);
                return kept == null
                    ? builder.table(step.get("topic").asText(), consumed)
                    : builder.table(step.get("topic").asText(), consumed, kept);
            case "global_table":
                return builder.globalTable(step.get("topic").asText(), Consumed.with(KEY, VALUE), kept);
            case "filter":
                Predicate<Object, Object> predicate = predicate(step.get("pred").asText());
                if (stream != null) {
                    return stream.filter(predicate);
                }
                return kept == null ? table.filter(predicate) : table.filter(predicate, kept);
            case "map_values":
                ValueMapperWithKey<Object, Object, Object> mapper = mapper(step.get("fn").asText());
                if (stream != null) {
                    return stream.mapValues(mapper);
                }
                return kept == null ? table.mapValues(mapper) : table.mapValues(mapper, kept);
            case "select_key":
                return stream.selectKey(selector(step.get("sel").asText()));
            case "map":
                return stream.map((key, value) -> KeyValue.pair(first(value), text(key) + "/" + text(value)));
            case "process":
                return stream.process(Rekeyed::new);
            case "process_values":
                return stream.processValues(Tagged::new);
            case "merge":
                return stream.merge((KStream) of[1]);
            case "repartition":
                Repartitioned<Object, Object> through = Repartitioned.with(KEY, VALUE);
                return stream.repartition(name == null ? through : through.withName(name));
            case "to_table":
                return stream.toTable(kept == null ? Materialized.with(KEY, VALUE) : kept);
            case "to_stream":
                return table.toStream();
            case "unwindow":
                return table.toStream((key, value) -> ((Windowed) key).key() + "@" + ((Windowed) key).window().start());
            case "suppress":
                return table.suppress(
                    step.get("until").asText().equals("window_closes")
                        ? Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())
                        : Suppressed.untilTimeLimit(ms(step, "ms"), Suppressed.BufferConfig.unbounded()));
            case "aggregate":
                return aggregate(step, grouped(stream, step.get("group").asText(), name));
            case "cogroup":
                return cogroup(step, of, kept == null ? Materialized.with(KEY, VALUE) : kept, name);
            case "group_table":
                KeyValueMapper<Object, Object, Object> select = selector(step.get("group").asText());
                KGroupedTable rows = table.groupBy(
                    (key, value) -> KeyValue.pair(select.apply(key, value), value),
                    name == null ? Grouped.with(KEY, VALUE) : Grouped.with(name, KEY, VALUE));
                return kept == null ? rows.count() : rows.count(kept(step).withKeySerde(KEY));
            case "join":
                return stream == null ? joinTables(step, table, (KTable) of[1], kept) : joinStream(step, stream, of[1]);
            case "to":
                stream.to(step.get("topic").asText(), Produced.with(KEY, VALUE));
                return null;
            default:
                throw new IllegalArgumentException(step.toString());
        }
    }

    private Object[] parents(JsonNode step) {
        JsonNode of = step.path("of");
        if (of.isNumber()) {
            return new Object[] {made.get(of.asInt())};
        }
        Object[] found = new Object[of.size()];
        for (int index = 0; index < found.length; index++) {
            found[index] = made.get(of.get(index).asInt());
        }
        return found;
    }

    private static Materialized kept(JsonNode step) {
        String store = step.get("store").asText();
        return step.has("versioned")
            ? Materialized.as(Stores.persistentVersionedKeyValueStore(store, ms(step, "versioned")))
            : Materialized.as(store);
    }

    private static KGroupedStream grouped(KStream stream, String by, String name) {
        Grouped how = name == null ? Grouped.with(KEY, VALUE) : Grouped.with(name, KEY, VALUE);
        return by.equals("key") ? stream.groupByKey(how) : stream.groupBy(selector(by), how);
    }

    private static Object aggregate(JsonNode step, KGroupedStream grouped) {
        String how = step.get("agg").asText();
        boolean counts = how.equals("count");
        Materialized kept = step.has("store") ? kept(step).withKeySerde(KEY) : null;
        if (kept != null && step.has("retention")) {
            kept = kept.withRetention(ms(step, "retention"));
        }
        if (!counts) {
            boolean needed = how.equals("aggregate");
            kept = kept != null ? kept.withValueSerde(VALUE) : needed ? Materialized.with(KEY, VALUE) : null;
        }
        Object windows = step.has("window") ? windows(step.get("window")) : null;
        if (windows instanceof SessionWindows) {
            SessionWindowedKStream found = grouped.windowedBy((SessionWindows) windows);
            if (counts) {
                return kept == null ? found.count() : found.count(kept);
            }
            if (how.equals("reduce")) {
                return kept == null ? found.reduce(REDUCER) : found.reduce(REDUCER, kept);
            }
            return found.aggregate(EMPTY, adder(""), MERGER, kept);
        }
        if (windows != null) {
            TimeWindowedKStream found = windows instanceof SlidingWindows
                ? grouped.windowedBy((SlidingWindows) windows)
                : grouped.windowedBy((TimeWindows) windows);
            if (counts) {
                return kept == null ? found.count() : found.count(kept);
            }
            if (how.equals("reduce")) {
                return kept == null ? found.reduce(REDUCER) : found.reduce(REDUCER, kept);
            }
            return found.aggregate(EMPTY, adder(""), kept);
        }
        if (counts) {
            return kept == null ? grouped.count() : grouped.count(kept);
        }
        if (how.equals("reduce")) {
            return kept == null ? grouped.reduce(REDUCER) : grouped.reduce(REDUCER, kept);
        }
        return grouped.aggregate(EMPTY, adder(""), kept);
    }

    private static Object cogroup(JsonNode step, Object[] of, Materialized kept, String name) {
        CogroupedKStream found = null;
        for (int index = 0; index < of.length; index++) {
            String topic = "g" + (index + 1) + (name == null ? "" : name);
            KGroupedStream member = grouped((KStream) of[index], step.get("groups").get(index).asText(), topic);
            Aggregator<Object, Object, Object> adder = adder((index + 1) + ":");
            found = found == null ? member.cogroup(adder) : found.cogroup(member, adder);
        }
        Object windows = step.has("window") ? windows(step.get("window")) : null;
        if (windows == null) {
            return found.aggregate(EMPTY, kept);
        }
        if (windows instanceof SessionWindows) {
            return found.windowedBy((SessionWindows) windows).aggregate(EMPTY, MERGER, kept);
        }
        return windows instanceof SlidingWindows
            ? found.windowedBy((SlidingWindows) windows).aggregate(EMPTY, kept)
            : found.windowedBy((TimeWindows) windows).aggregate(EMPTY, kept);
    }

    private static Object joinStream(JsonNode step, KStream stream, Object other) {
        String type = step.get("type").asText();
        if (other instanceof KStream) {
            KStream right = (KStream) other;
            JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(ms(step, "diff"), ms(step, "grace"));
            StreamJoined how = StreamJoined.with(KEY, VALUE, VALUE);
            switch (type) {
                case "inner": return stream.join(right, JOINER, windows, how);
                case "left": return stream.leftJoin(right, JOINER, windows, how);
                default: return stream.outerJoin(right, JOINER, windows, how);
            }
        }
        if (other instanceof GlobalKTable) {
            return joinGlobal(step, stream, (GlobalKTable) other);
        }
        Joined how = Joined.with(KEY, VALUE, VALUE);
        how = step.has("grace") ? how.withGracePeriod(ms(step, "grace")) : how;
        KTable table = (KTable) other;
        return type.equals("inner") ? stream.join(table, JOINER, how) : stream.leftJoin(table, JOINER, how);
    }

    private static Object joinGlobal(JsonNode step, KStream stream, GlobalKTable rows) {
        boolean inner = step.get("type").asText().equals("inner");
        KeyValueMapper<Object, Object, Object> select = selector(step.get("select").asText());
        if (!step.path("both_keys").asBoolean(false)) {
            return inner ? stream.join(rows, select, JOINER) : stream.leftJoin(rows, select, JOINER);
        }
        ValueJoinerWithStreamAndMappedKey<Object, Object, Object, Object, Object> joiner =
            (key, rowKey, one, other) -> text(key) + "/" + text(rowKey) + "=" + JOINER.apply(one, other);
        return inner ? stream.join(rows, select, joiner) : stream.leftJoin(rows, select, joiner);
    }

    private static Object joinTables(JsonNode step, KTable left, KTable right, Materialized kept) {
        String type = step.get("type").asText();
        if (step.has("fk")) {
            KeyValueMapper<Object, Object, Object> select = selector(step.get("fk").asText());
            Function<Object, Object> foreignKey = value -> select.apply(null, value);
            Materialized how = Materialized.with(KEY, VALUE);
            return type.equals("inner")
                ? left.join(right, foreignKey, JOINER, how)
                : left.leftJoin(right, foreignKey, JOINER, how);
        }
        switch (type) {
            case "inner": return kept == null ? left.join(right, JOINER) : left.join(right, JOINER, kept);
            case "left": return kept == null ? left.leftJoin(right, JOINER) : left.leftJoin(right, JOINER, kept);
            default: return kept == null ? left.outerJoin(right, JOINER) : left.outerJoin(right, JOINER, kept);
        }
    }

    // ---------------------------------------------------------------- processors

    private static final class Rekeyed extends ContextualProcessor<Object, Object, Object, Object> {
        @Override
        public void process(Record<Object, Object> record) {
            context().forward(record.withKey(first(record.value())));
        }
    }

    private static final class Tagged extends ContextualFixedKeyProcessor<Object, Object, Object> {
        @Override
        public void process(FixedKeyRecord<Object, Object> record) {
            context().forward(record.withValue(text(record.key()) + ":" + text(record.value())));
        }
    }

    // ---------------------------------------------------------------- the small language of functions

    private static Predicate<Object, Object> predicate(String spec) {
        String[] parts = spec.split(":", 2);
        switch (parts[0]) {
            case "true": return (key, value) -> true;
            case "has_value": return (key, value) -> value != null;
            case "value_len_gt": return (key, value) -> value != null && text(value).length() > Integer.parseInt(parts[1]);
            default: throw new IllegalArgumentException(spec);
        }
    }

    private static ValueMapperWithKey<Object, Object, Object> mapper(String spec) {
        switch (spec) {
            case "upper": return (key, value) -> value == null ? null : text(value).toUpperCase();
            case "tag": return (key, value) -> text(key) + ":" + text(value);
            case "to_string": return (key, value) -> value == null ? null : text(value);
            default: throw new IllegalArgumentException(spec);
        }
    }

    private static KeyValueMapper<Object, Object, Object> selector(String spec) {
        String[] parts = spec.split(":", 2);
        switch (parts[0]) {
            case "value": return (key, value) -> value == null ? null : text(value);
            case "first_char": return (key, value) -> first(value);
            case "key_first_char": return (key, value) -> first(key);
            case "const": return (key, value) -> parts[1];
            default: throw new IllegalArgumentException(spec);
        }
    }

    private static Object windows(JsonNode spec) {
        Duration grace = ms(spec, "grace");
        switch (spec.get("kind").asText()) {
            case "tumbling": return TimeWindows.ofSizeAndGrace(ms(spec, "size"), grace);
            case "hopping": return TimeWindows.ofSizeAndGrace(ms(spec, "size"), grace).advanceBy(ms(spec, "advance"));
            case "sliding": return SlidingWindows.ofTimeDifferenceAndGrace(ms(spec, "diff"), grace);
            case "session": return SessionWindows.ofInactivityGapAndGrace(ms(spec, "gap"), grace);
            default: throw new IllegalArgumentException(spec.toString());
        }
    }

    private static Aggregator<Object, Object, Object> adder(String mark) {
        return (key, value, aggregate) -> aggregate + "+" + mark + text(value);
    }

    private static Duration ms(JsonNode spec, String field) {
        return Duration.ofMillis(spec.path(field).asLong(0));
    }

    /** As `reduce` in language.py. */
    private static Object reduced(Object one, Object other) {
        return one instanceof Long && other instanceof Long
            ? (Object) ((Long) one + (Long) other)
            : text(one) + "," + text(other);
    }

    private static String text(Object value) {
        return value == null ? "-" : value.toString();
    }

    private static String first(Object value) {
        return value == null || text(value).isEmpty() ? (String) value : text(value).substring(0, 1);
    }

    private static byte[] bytes(String value) {
        return value.getBytes(StandardCharsets.UTF_8);
    }

    private static Object plain(JsonNode value) {
        return value.isNull() ? null : value.isNumber() ? (Object) value.asLong() : value.asText();
    }

    /** Texts and integers as JSON; it also reads what Kafka's serde of longs wrote. */
    public static final class AnySerde implements Serde<Object> {
        @Override
        public Serializer<Object> serializer() {
            return (topic, value) -> {
                try {
                    return value == null ? null : JSON.writeValueAsBytes(value);
                } catch (java.io.IOException error) {
                    throw new UncheckedIOException(error);
                }
            };
        }

        @Override
        public Deserializer<Object> deserializer() {
            return (topic, data) -> {
                if (data == null) {
                    return null;
                }
                if (data.length == 8 && data[0] == 0) {
                    return new LongDeserializer().deserialize(topic, data);
                }
                try {
                    return plain(JSON.readTree(data));
                } catch (java.io.IOException error) {
                    throw new UncheckedIOException(error);
                }
            };
        }
    }

    /** See `digits_or_later` in steps.py. */
    public static final class DigitsOrLater implements TimestampExtractor {
        @Override
        public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
            String value = text(record.value());
            int colon = value.indexOf(':');
            boolean isNumber = colon > 0 && value.substring(0, colon).chars().allMatch(Character::isDigit);
            return isNumber ? Long.parseLong(value.substring(0, colon)) : record.timestamp() + 1000;
        }
    }
}
