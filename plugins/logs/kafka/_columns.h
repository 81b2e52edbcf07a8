/* What the parts of the module `_columns` share: librdkafka's functions, and the handle of a client.

   librdkafka's headers are not needed: the functions and constants that are used are declared here. All of them are
   public, and librdkafka keeps their binary interface. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

/* ------------------------------------------------------------------ librdkafka */

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_op_s rd_kafka_event_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

enum { PARTITION_UA = -1, MSG_F_COPY = 2, EVENT_LOG = 4, EVENT_ERROR = 8 };
enum { ERR_FAIL = -196, ERR_PURGE_QUEUE = -152, ERR_PURGE_INFLIGHT = -151 };
enum { V_END, V_TOPIC, V_RKT, V_PARTITION, V_VALUE, V_KEY, V_OPAQUE, V_MSGFLAGS, V_TIMESTAMP, V_HEADER, V_HEADERS };

typedef int on_new_t(rd_kafka_t *, const rd_kafka_conf_t *, void *, char *, size_t);
typedef int on_destroy_t(rd_kafka_t *, void *);
typedef int on_acknowledgement_t(rd_kafka_t *, rd_kafka_message_t *, void *);

#define FUNCTIONS(F)                                                                                                   \
    F(int, rd_kafka_version, (void))                                                                                   \
    F(int, rd_kafka_last_error, (void))                                                                                \
    F(const char *, rd_kafka_err2str, (int))                                                                           \
    F(const char *, rd_kafka_name, (const rd_kafka_t *))                                                               \
    F(int, rd_kafka_conf_interceptor_add_on_new, (rd_kafka_conf_t *, const char *, on_new_t *, void *))                \
    F(int, rd_kafka_interceptor_add_on_destroy, (rd_kafka_t *, const char *, on_destroy_t *, void *))                  \
    F(int, rd_kafka_interceptor_add_on_acknowledgement,                                                                \
      (rd_kafka_t *, const char *, on_acknowledgement_t *, void *))                                                    \
    F(rd_kafka_queue_t *, rd_kafka_queue_get_main, (rd_kafka_t *))                                                     \
    F(rd_kafka_queue_t *, rd_kafka_queue_get_consumer, (rd_kafka_t *))                                                 \
    F(void, rd_kafka_queue_forward, (rd_kafka_queue_t *, rd_kafka_queue_t *))                                          \
    F(void, rd_kafka_queue_destroy, (rd_kafka_queue_t *))                                                              \
    F(rd_kafka_event_t *, rd_kafka_queue_poll, (rd_kafka_queue_t *, int))                                              \
    F(int, rd_kafka_event_type, (const rd_kafka_event_t *))                                                            \
    F(int, rd_kafka_event_error, (rd_kafka_event_t *))                                                                 \
    F(const char *, rd_kafka_event_error_string, (rd_kafka_event_t *))                                                 \
    F(int, rd_kafka_event_log, (rd_kafka_event_t *, const char **, const char **, int *))                              \
    F(void, rd_kafka_event_destroy, (rd_kafka_event_t *))                                                              \
    F(ssize_t, rd_kafka_consume_batch_queue, (rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t))                 \
    F(void, rd_kafka_message_destroy, (rd_kafka_message_t *))                                                          \
    F(const char *, rd_kafka_message_errstr, (const rd_kafka_message_t *))                                             \
    F(int64_t, rd_kafka_message_timestamp, (const rd_kafka_message_t *, int *))                                        \
    F(int, rd_kafka_message_headers, (const rd_kafka_message_t *, rd_kafka_headers_t **))                              \
    F(rd_kafka_headers_t *, rd_kafka_headers_new, (size_t))                                                            \
    F(void, rd_kafka_headers_destroy, (rd_kafka_headers_t *))                                                          \
    F(size_t, rd_kafka_header_cnt, (const rd_kafka_headers_t *))                                                       \
    F(int, rd_kafka_header_add, (rd_kafka_headers_t *, const char *, ssize_t, const void *, ssize_t))                  \
    F(int, rd_kafka_header_get_all,                                                                                    \
      (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))                                    \
    F(rd_kafka_topic_t *, rd_kafka_topic_new, (rd_kafka_t *, const char *, rd_kafka_topic_conf_t *))                   \
    F(void, rd_kafka_topic_destroy, (rd_kafka_topic_t *))                                                              \
    F(const char *, rd_kafka_topic_name, (const rd_kafka_topic_t *))                                                   \
    F(int, rd_kafka_producev, (rd_kafka_t *, ...))

#define DECLARE(type, name, arguments) extern type(*name) arguments;
FUNCTIONS(DECLARE)

/* ------------------------------------------------------------------ handles */

typedef struct {
    int code; /* 0: there is none */
    size_t bytes;
    char topic[256];
} Failure;

/* A client. librdkafka's threads know it by its number, as they may still report after it is gone. */
typedef struct Handle {
    PyObject_HEAD
    uintptr_t number;
    struct Handle *next;
    rd_kafka_t *rk; /* NULL before it is made, and when it is destroyed */
    int users;      /* calls that use rk */
    Failure failure;
} Handle;

/* Return the client of a handle, which is not destroyed before end_use; NULL with an exception if it is closed. */
rd_kafka_t *begin_use(Handle *self);
void end_use(Handle *self);

extern __thread int is_producing; /* whether this thread queues a record: it gets that one's error from the call */

PyObject *handle_take(Handle *self, PyObject *args);
PyObject *handle_produce(Handle *self, PyObject *args);

#pragma GCC visibility pop
