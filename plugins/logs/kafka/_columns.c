/* Messages by column, over the librdkafka that confluent-kafka has loaded.

   columns.py has the same in Python, which is the specification: there each message that is consumed is an object, and
   each record that is produced a call. docs/decisions/kafka.md says why it is done in this way.

   This file is also a plugin of librdkafka. A client whose configuration names it in plugin.library.paths calls
   conf_init, and from then on interceptors of this file: on_new gets the client's handle, on_destroy ends its use, and
   on_acknowledgement gets the records that were not delivered. confluent-kafka's own reports of deliveries need an
   object for each record, and leave out records without one. */

#include "_columns.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define REVISION 2 /* penstock.compiled.REVISION */

/* ------------------------------------------------------------------ librdkafka */

#define DEFINE(type, name, arguments) type(*name) arguments;
FUNCTIONS(DEFINE)

static int is_linked; /* whether all of them are found */

/* link(path) -> version: find librdkafka's functions in what the library at `path`, which is loaded, depends on. */
static PyObject *link_library(PyObject *module, PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "s", &path))
        return NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD); /* never closed: the functions are used until the end */
    if (!library)
        return PyErr_Format(PyExc_ImportError, "%s is not loaded", path);
#define FIND(type, name, arguments)                                                                                    \
    if (!(*(void **)&name = dlsym(library, #name)))                                                                    \
        return PyErr_Format(PyExc_ImportError, "%s has no " #name, path);
    FUNCTIONS(FIND)
    is_linked = 1;
    return PyLong_FromLong(rd_kafka_version());
}

/* ------------------------------------------------------------------ handles */

/* Guards the list and the fields of all handles. Nobody takes the GIL while it has this lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_unused = PTHREAD_COND_INITIALIZER;
static Handle *handles;
static uintptr_t last_number;

static __thread uintptr_t expected; /* the handle of the client that this thread makes next */
__thread int is_producing;

static Handle *find(uintptr_t number)
{
    Handle *handle = handles;
    while (handle && handle->number != number)
        handle = handle->next;
    return handle;
}

rd_kafka_t *begin_use(Handle *self)
{
    pthread_mutex_lock(&lock);
    rd_kafka_t *rk = self->rk;
    if (rk)
        self->users++;
    pthread_mutex_unlock(&lock);
    if (!rk)
        PyErr_SetString(PyExc_RuntimeError, "the client is closed");
    return rk;
}

void end_use(Handle *self)
{
    pthread_mutex_lock(&lock);
    if (!--self->users)
        pthread_cond_broadcast(&is_unused);
    pthread_mutex_unlock(&lock);
}

static int on_destroy(rd_kafka_t *rk, void *number)
{
    Handle *handle;
    pthread_mutex_lock(&lock);
    if ((handle = find((uintptr_t)number)))
        handle->rk = NULL;
    while ((handle = find((uintptr_t)number)) && handle->users)
        pthread_cond_wait(&is_unused, &lock);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int is_purge(int code)
{
    return code == ERR_PURGE_QUEUE || code == ERR_PURGE_INFLIGHT;
}

/* Keep the first error, but prefer a refused record to those that were given up because of it. */
static void note_failure(Failure *failure, const rd_kafka_message_t *message)
{
    if (failure->code && (!is_purge(failure->code) || is_purge(message->err)))
        return;
    failure->code = message->err;
    failure->bytes = (message->key ? message->key_len : 0) + (message->payload ? message->len : 0);
    const char *topic = message->rkt ? rd_kafka_topic_name(message->rkt) : "?";
    strncpy(failure->topic, topic, sizeof failure->topic - 1);
}

static int on_acknowledgement(rd_kafka_t *rk, rd_kafka_message_t *message, void *number)
{
    if (!message->err || is_producing)
        return 0;
    pthread_mutex_lock(&lock);
    Handle *handle = find((uintptr_t)number);
    if (handle)
        note_failure(&handle->failure, message);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Called in the thread that makes the client, before it is used. */
static int on_new(rd_kafka_t *rk, const rd_kafka_conf_t *conf, void *opaque, char *error, size_t size)
{
    void *number = (void *)expected;
    expected = 0;
    if (!number || rd_kafka_interceptor_add_on_destroy(rk, "penstock", on_destroy, number) ||
        rd_kafka_interceptor_add_on_acknowledgement(rk, "penstock", on_acknowledgement, number))
        return 0; /* the handle has no client, which its maker finds out */
    pthread_mutex_lock(&lock);
    Handle *handle = find((uintptr_t)number);
    if (handle)
        handle->rk = rk;
    pthread_mutex_unlock(&lock);
    return 0;
}

__attribute__((visibility("default"))) int conf_init(rd_kafka_conf_t *conf, void **opaque, char *error, size_t size)
{
    return is_linked ? rd_kafka_conf_interceptor_add_on_new(conf, "penstock", on_new, NULL) : 0;
}

static PyTypeObject *handle_type;

/* expect() -> the handle of the client that this thread makes next, with this file as a plugin */
static PyObject *expect(PyObject *module, PyObject *ignored)
{
    Handle *self = PyObject_New(Handle, handle_type);
    if (!self)
        return NULL;
    self->rk = NULL;
    self->users = 0;
    memset(&self->failure, 0, sizeof self->failure);
    pthread_mutex_lock(&lock);
    expected = self->number = ++last_number;
    self->next = handles;
    handles = self;
    pthread_mutex_unlock(&lock);
    return (PyObject *)self;
}

static void handle_dealloc(Handle *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pthread_mutex_lock(&lock);
    Handle **at = &handles;
    while (*at && *at != self)
        at = &(*at)->next;
    if (*at)
        *at = self->next;
    pthread_cond_broadcast(&is_unused);
    pthread_mutex_unlock(&lock);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *handle_is_open(Handle *self, void *closure)
{
    pthread_mutex_lock(&lock);
    int is_open = self->rk != NULL;
    pthread_mutex_unlock(&lock);
    return PyBool_FromLong(is_open);
}

/* separate(): let errors and log lines stay out of the consumer's queue. confluent-kafka's callbacks for them may only
   be called by its own functions; handle_take returns them. */
static PyObject *handle_separate(Handle *self, PyObject *ignored)
{
    rd_kafka_t *rk = begin_use(self);
    if (!rk)
        return NULL;
    rd_kafka_queue_t *queue = rd_kafka_queue_get_main(rk);
    rd_kafka_queue_forward(queue, NULL);
    rd_kafka_queue_destroy(queue);
    end_use(self);
    Py_RETURN_NONE;
}

/* failure() -> (topic, code, bytes) of the first record that was not delivered, or None */
static PyObject *handle_failure(Handle *self, PyObject *ignored)
{
    pthread_mutex_lock(&lock);
    Failure failure = self->failure;
    pthread_mutex_unlock(&lock);
    if (!failure.code)
        Py_RETURN_NONE;
    return Py_BuildValue("(sin)", failure.topic, failure.code, (Py_ssize_t)failure.bytes);
}

static PyObject *handle_forget_failure(Handle *self, PyObject *ignored)
{
    pthread_mutex_lock(&lock);
    memset(&self->failure, 0, sizeof self->failure);
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ the module */

static PyMethodDef handle_methods[] = {
    {"separate", (PyCFunction)handle_separate, METH_NOARGS, NULL},
    {"take", (PyCFunction)handle_take, METH_VARARGS, NULL},
    {"produce", (PyCFunction)handle_produce, METH_VARARGS, NULL},
    {"failure", (PyCFunction)handle_failure, METH_NOARGS, NULL},
    {"forget_failure", (PyCFunction)handle_forget_failure, METH_NOARGS, NULL},
    {NULL},
};
static PyGetSetDef handle_properties[] = {{"is_open", (getter)handle_is_open}, {NULL}};
static PyType_Slot handle_slots[] = {
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_methods, handle_methods},
    {Py_tp_getset, handle_properties},
    {0, NULL},
};
static PyType_Spec handle_spec = {
    "penstock.plugins.logs.kafka._columns.Handle",
    sizeof(Handle),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    handle_slots,
};
static PyMethodDef functions[] = {
    {"link", link_library, METH_VARARGS, NULL},
    {"expect", expect, METH_NOARGS, NULL},
    {NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_columns", NULL, -1, functions};

PyMODINIT_FUNC PyInit__columns(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    handle_type = (PyTypeObject *)PyType_FromSpec(&handle_spec);
    if (!handle_type || PyModule_AddIntConstant(module, "REVISION", REVISION))
        Py_CLEAR(module);
    return module;
}
