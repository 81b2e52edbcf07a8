/* Messages that are consumed, by column: the part of `_columns` that is `take`. */

#include "_columns.h"

#include <string.h>

static PyObject *text_of(const char *text)
{
    return text ? PyUnicode_DecodeUTF8(text, strlen(text), "replace") : PyUnicode_FromString("");
}

static PyObject *bytes_or_none(const void *at, size_t size)
{
    return at ? PyBytes_FromStringAndSize(at, size) : Py_NewRef(Py_None);
}

/* The messages of one partition by column. */
typedef struct {
    rd_kafka_topic_t *topic;
    int32_t partition;
    Py_ssize_t count, filled;
    int64_t first, last;
    PyObject *offsets, *keys, *values, *timestamps, *headers; /* headers: NULL if no message has any */
} Columns;

static void free_columns(Columns *all, Py_ssize_t count)
{
    for (Columns *each = all; each < all + count; each++) {
        Py_XDECREF(each->offsets);
        Py_XDECREF(each->keys);
        Py_XDECREF(each->values);
        Py_XDECREF(each->timestamps);
        Py_XDECREF(each->headers);
    }
    PyMem_Free(all);
}

/* Count the messages of each partition into `all`, in `of` the index of each message's. Return how many there are. */
static Py_ssize_t sort(rd_kafka_message_t **messages, Py_ssize_t count, Columns *all, Py_ssize_t *of)
{
    Py_ssize_t groups = 0, at = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        rd_kafka_message_t *message = messages[i];
        if (message->err)
            continue;
        if (at >= groups || all[at].topic != message->rkt || all[at].partition != message->partition)
            for (at = 0; at < groups; at++)
                if (all[at].topic == message->rkt && all[at].partition == message->partition)
                    break;
        Columns *columns = &all[of[i] = at];
        if (at == groups) {
            groups++;
            columns->topic = message->rkt;
            columns->partition = message->partition;
            columns->first = message->offset;
        }
        columns->last = message->offset;
        columns->count++;
    }
    return groups;
}

static int is_dense(const Columns *columns)
{
    return columns->last - columns->first + 1 == columns->count;
}

static int make_lists(Columns *columns)
{
    columns->offsets = is_dense(columns) ? PyObject_CallFunction((PyObject *)&PyRange_Type, "LL",
                                                                 (long long)columns->first,
                                                                 (long long)columns->last + 1)
                                         : PyList_New(columns->count);
    columns->keys = PyList_New(columns->count);
    columns->values = PyList_New(columns->count);
    columns->timestamps = PyList_New(columns->count);
    return columns->offsets && columns->keys && columns->values && columns->timestamps;
}

/* Return headers as a tuple of (name, value). */
static PyObject *headers_of(const rd_kafka_headers_t *headers)
{
    size_t count = headers ? rd_kafka_header_cnt(headers) : 0;
    PyObject *pairs = PyTuple_New(count);
    for (size_t i = 0; pairs && i < count; i++) {
        const char *name;
        const void *value;
        size_t size;
        rd_kafka_header_get_all(headers, i, &name, &value, &size);
        PyObject *pair = Py_BuildValue("(sN)", name, bytes_or_none(value, size));
        if (!pair)
            Py_CLEAR(pairs);
        else
            PyTuple_SET_ITEM(pairs, i, pair);
    }
    return pairs;
}

/* Make the list of headers with the first message that has any; those before it have none. */
static int add_headers(Columns *columns, Py_ssize_t at, const rd_kafka_message_t *message)
{
    rd_kafka_headers_t *headers = NULL;
    if (rd_kafka_message_headers(message, &headers) || (headers && !rd_kafka_header_cnt(headers)))
        headers = NULL;
    if (!headers && !columns->headers)
        return 1;
    if (!columns->headers && !(columns->headers = PyList_New(columns->count)))
        return 0;
    for (Py_ssize_t i = at - 1; i >= 0 && !PyList_GET_ITEM(columns->headers, i); i--) {
        PyObject *none = PyTuple_New(0);
        if (!none)
            return 0;
        PyList_SET_ITEM(columns->headers, i, none);
    }
    PyObject *pairs = headers_of(headers);
    if (pairs)
        PyList_SET_ITEM(columns->headers, at, pairs);
    return pairs != NULL;
}

static int add_message(Columns *columns, const rd_kafka_message_t *message)
{
    int kind;
    Py_ssize_t at = columns->filled++;
    PyObject *key = bytes_or_none(message->key, message->key_len);
    PyObject *value = bytes_or_none(message->payload, message->len);
    PyObject *timestamp = PyLong_FromLongLong(rd_kafka_message_timestamp(message, &kind));
    PyObject *offset = is_dense(columns) ? NULL : PyLong_FromLongLong(message->offset);
    PyList_SET_ITEM(columns->keys, at, key); /* a list may have NULL until it is freed */
    PyList_SET_ITEM(columns->values, at, value);
    PyList_SET_ITEM(columns->timestamps, at, timestamp);
    if (!is_dense(columns))
        PyList_SET_ITEM(columns->offsets, at, offset);
    return key && value && timestamp && (offset || is_dense(columns)) && add_headers(columns, at, message);
}

/* Append (topic, partition, offset, code, text) for what is no record. */
static int add_event(PyObject *events, const rd_kafka_message_t *message)
{
    PyObject *event = Py_BuildValue("(siLiN)", message->rkt ? rd_kafka_topic_name(message->rkt) : "",
                                    (int)message->partition, (long long)message->offset, message->err,
                                    text_of(rd_kafka_message_errstr(message)));
    int is_added = event && PyList_Append(events, event) == 0;
    Py_XDECREF(event);
    return is_added;
}

/* Append (topic, partition, offsets, keys, values, timestamps, headers, next offset), and keep no reference. */
static int add_batch(PyObject *batches, Columns *columns)
{
    PyObject *headers = columns->headers ? columns->headers : Py_None;
    PyObject *batch = Py_BuildValue("(siOOOOOL)", rd_kafka_topic_name(columns->topic), (int)columns->partition,
                                    columns->offsets, columns->keys, columns->values, columns->timestamps, headers,
                                    (long long)columns->last + 1);
    int is_added = batch && PyList_Append(batches, batch) == 0;
    Py_XDECREF(batch);
    return is_added;
}

static int fill(rd_kafka_message_t **messages, Py_ssize_t count, PyObject *batches, PyObject *events)
{
    Py_ssize_t *of = PyMem_New(Py_ssize_t, count + 1);
    Columns *all = PyMem_Calloc(count + 1, sizeof *all);
    Py_ssize_t groups = 0;
    int is_ok = of && all;
    if (is_ok)
        groups = sort(messages, count, all, of);
    else
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; is_ok && i < groups; i++)
        is_ok = make_lists(&all[i]);
    for (Py_ssize_t i = 0; is_ok && i < count; i++)
        is_ok = messages[i]->err ? add_event(events, messages[i]) : add_message(&all[of[i]], messages[i]);
    for (Py_ssize_t i = 0; is_ok && i < groups; i++)
        is_ok = add_batch(batches, &all[i]);
    free_columns(all, groups);
    PyMem_Free(of);
    return is_ok;
}

/* Append (code, text) for errors of connections, and (0, text) for log lines. */
static int add_reports(rd_kafka_t *rk, PyObject *reports)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_get_main(rk);
    rd_kafka_event_t *event;
    int is_ok = 1;
    while (is_ok && (event = rd_kafka_queue_poll(queue, 0))) {
        PyObject *report = NULL;
        const char *facility, *text;
        int level, type = rd_kafka_event_type(event);
        if (type == EVENT_ERROR)
            report = Py_BuildValue("(iN)", rd_kafka_event_error(event), text_of(rd_kafka_event_error_string(event)));
        else if (type == EVENT_LOG && !rd_kafka_event_log(event, &facility, &text, &level))
            report = Py_BuildValue("(iN)", 0, PyUnicode_FromFormat("%s [%s] %s", facility, rd_kafka_name(rk), text));
        if (report)
            is_ok = PyList_Append(reports, report) == 0;
        else
            is_ok = !PyErr_Occurred();
        Py_XDECREF(report);
        rd_kafka_event_destroy(event);
    }
    rd_kafka_queue_destroy(queue);
    return is_ok;
}

static PyObject *taken_of(rd_kafka_t *rk, rd_kafka_message_t **messages, Py_ssize_t count, int code)
{
    PyObject *batches = PyList_New(0), *events = PyList_New(0), *reports = PyList_New(0), *taken = NULL;
    if (batches && events && reports && add_reports(rk, reports) && fill(messages, count, batches, events))
        taken = Py_BuildValue("(OOOi)", batches, events, reports, code);
    Py_XDECREF(batches);
    Py_XDECREF(events);
    Py_XDECREF(reports);
    return taken;
}

/* Wait for up to `most` messages; -1 for an error, which is in `code`. */
static ssize_t receive(rd_kafka_t *rk, int timeout_ms, rd_kafka_message_t **messages, size_t most, int *code)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(rk);
    ssize_t count = -1;
    *code = ERR_FAIL;
    if (queue) {
        count = rd_kafka_consume_batch_queue(queue, timeout_ms, messages, most);
        *code = count < 0 ? rd_kafka_last_error() : 0;
        rd_kafka_queue_destroy(queue);
    }
    return count;
}

/* take(most, timeout_ms) -> (batches, events, reports, code): up to `most` messages */
PyObject *handle_take(Handle *self, PyObject *args)
{
    int timeout_ms, code;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "ni", &most, &timeout_ms))
        return NULL;
    if (most < 1 || most > 1000000)
        return PyErr_Format(PyExc_ValueError, "expected 1 to 1000000 messages, got %zd", most);
    rd_kafka_message_t **messages = PyMem_New(rd_kafka_message_t *, most);
    if (!messages)
        return PyErr_NoMemory();
    rd_kafka_t *rk = begin_use(self);
    if (!rk) {
        PyMem_Free(messages);
        return NULL;
    }
    ssize_t count;
    Py_BEGIN_ALLOW_THREADS
    count = receive(rk, timeout_ms, messages, most, &code);
    Py_END_ALLOW_THREADS
    count = count < 0 ? 0 : count;
    PyObject *taken = PyErr_CheckSignals() ? NULL : taken_of(rk, messages, count, code);
    for (ssize_t i = 0; i < count; i++)
        rd_kafka_message_destroy(messages[i]);
    end_use(self);
    PyMem_Free(messages);
    return taken;
}
