/* Records that are produced, by column: the part of `_columns` that is `produce`. */

#include "_columns.h"

#include <string.h>

/* The part of a batch that is queued. */
typedef struct {
    rd_kafka_t *rk;
    rd_kafka_topic_t *topic;
    PyObject *keys, *values, *timestamps, *headers, *partitions; /* lists; the last two may be None */
    int code;                                                    /* why librdkafka refused a record */
} Batch;

/* Point at the bytes of an object; `at` is NULL for None. Others are converted or refused, as in confluent-kafka. */
static int as_bytes(PyObject *object, const char **at, Py_ssize_t *size)
{
    *at = NULL;
    *size = 0;
    if (PyBytes_Check(object)) {
        *at = PyBytes_AS_STRING(object);
        *size = PyBytes_GET_SIZE(object);
    }
    return *at || object == Py_None || PyArg_Parse(object, "z#", at, size);
}

static int add_header(rd_kafka_headers_t *headers, PyObject *name, PyObject *value)
{
    const char *at = NULL, *text;
    Py_ssize_t size = 0;
    PyObject *as_text = PyObject_Str(name);
    int is_ok = as_text && (text = PyUnicode_AsUTF8(as_text));
    if (is_ok && PyUnicode_Check(value)) {
        is_ok = (at = PyUnicode_AsUTF8(value)) != NULL;
        size = at ? strlen(at) : 0;
    } else if (is_ok && value != Py_None && !PyBytes_Check(value)) {
        PyErr_Format(PyExc_TypeError, "expected header value to be None, binary, or unicode string, not %s",
                     Py_TYPE(value)->tp_name);
        is_ok = 0;
    } else if (is_ok) {
        is_ok = as_bytes(value, &at, &size);
    }
    if (is_ok && rd_kafka_header_add(headers, text, -1, at, size)) {
        PyErr_Format(PyExc_ValueError, "unable to add message header \"%s\"", text);
        is_ok = 0;
    }
    Py_XDECREF(as_text);
    return is_ok;
}

/* Return headers of librdkafka, which takes them over with the record. */
static rd_kafka_headers_t *as_headers(PyObject *pairs)
{
    PyObject *list = PySequence_List(pairs);
    if (!list)
        return NULL;
    rd_kafka_headers_t *headers = rd_kafka_headers_new(PyList_GET_SIZE(list));
    for (Py_ssize_t i = 0; headers && i < PyList_GET_SIZE(list); i++) {
        PyObject *pair = PyList_GET_ITEM(list, i);
        int is_pair = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2;
        if (!is_pair)
            PyErr_SetString(PyExc_TypeError, "Headers are expected to be a list of (key, value) tuples");
        if (!is_pair || !add_header(headers, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1))) {
            rd_kafka_headers_destroy(headers);
            headers = NULL;
        }
    }
    Py_DECREF(list);
    return headers;
}

/* Queue a record for one partition. librdkafka copies the bytes. */
static int queue_for(Batch *batch, Py_ssize_t at, int64_t timestamp, int32_t partition)
{
    const char *key, *value;
    Py_ssize_t key_size, value_size;
    rd_kafka_headers_t *headers = NULL;
    if (!as_bytes(PyList_GET_ITEM(batch->keys, at), &key, &key_size) ||
        !as_bytes(PyList_GET_ITEM(batch->values, at), &value, &value_size))
        return 0;
    if (batch->headers != Py_None && !(headers = as_headers(PyList_GET_ITEM(batch->headers, at))))
        return 0;
    is_producing = 1;
    batch->code = rd_kafka_producev(batch->rk, V_RKT, batch->topic, V_PARTITION, partition, V_MSGFLAGS, MSG_F_COPY,
                                    V_KEY, key, (size_t)key_size, V_VALUE, value, (size_t)value_size, V_TIMESTAMP,
                                    timestamp, V_HEADERS, headers, V_END);
    is_producing = 0;
    if (batch->code && headers)
        rd_kafka_headers_destroy(headers);
    return !batch->code;
}

static int queue_for_each(Batch *batch, Py_ssize_t at, int64_t timestamp, PyObject *partitions)
{
    PyObject *targets = PySequence_Fast(partitions, "expected a sequence of partitions");
    int is_ok = targets != NULL;
    for (Py_ssize_t i = 0; is_ok && i < PySequence_Fast_GET_SIZE(targets); i++) {
        long partition = PyLong_AsLong(PySequence_Fast_GET_ITEM(targets, i));
        is_ok = !(partition == -1 && PyErr_Occurred()) && queue_for(batch, at, timestamp, (int32_t)partition);
    }
    Py_XDECREF(targets);
    return is_ok;
}

/* Return whether a record is queued; if not, there is an exception or a code. */
static int queue_record(Batch *batch, Py_ssize_t at)
{
    int64_t timestamp = PyLong_AsLongLong(PyList_GET_ITEM(batch->timestamps, at));
    if (timestamp == -1 && PyErr_Occurred())
        return 0;
    if (timestamp == 0)
        timestamp = 1; /* librdkafka takes 0 for "now" */
    PyObject *partitions = batch->partitions == Py_None ? Py_None : PyList_GET_ITEM(batch->partitions, at);
    if (partitions == Py_None)
        return queue_for(batch, at, timestamp, PARTITION_UA);
    return queue_for_each(batch, at, timestamp, partitions);
}

static int is_column(PyObject *column, Py_ssize_t size)
{
    if (PyList_Check(column) && PyList_GET_SIZE(column) >= size)
        return 1;
    PyErr_Format(PyExc_TypeError, "expected a list of %zd", size);
    return 0;
}

/* produce(topic, keys, values, timestamps, headers, partitions, start, stop) -> 0, or librdkafka's code for the first
   record that it refused: queue the records from `start` to `stop`. The GIL is kept, so the lists do not change. */
PyObject *handle_produce(Handle *self, PyObject *args)
{
    Batch batch = {0};
    const char *topic;
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(args, "sOOOOOnn", &topic, &batch.keys, &batch.values, &batch.timestamps, &batch.headers,
                          &batch.partitions, &start, &stop))
        return NULL;
    if (start < 0 || !is_column(batch.keys, stop) || !is_column(batch.values, stop) ||
        !is_column(batch.timestamps, stop) || (batch.headers != Py_None && !is_column(batch.headers, stop)) ||
        (batch.partitions != Py_None && !is_column(batch.partitions, stop)))
        return NULL;
    if (!(batch.rk = begin_use(self)))
        return NULL;
    /* For a topic by name librdkafka would take its lock for each record. */
    if (!(batch.topic = rd_kafka_topic_new(batch.rk, topic, NULL)))
        batch.code = rd_kafka_last_error();
    for (Py_ssize_t i = start; batch.topic && i < stop; i++)
        if (!queue_record(&batch, i))
            break;
    if (batch.topic)
        rd_kafka_topic_destroy(batch.topic);
    end_use(self);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(batch.code);
}
