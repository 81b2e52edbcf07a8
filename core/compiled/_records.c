/* The record path in C: what a task does for each record, where nothing unusual happens.
 *
 * A Function stands for a Python function, its `slow`. It does the common case, and before it has changed anything it
 * hands every other call to `slow`, with the same arguments: other types, more arguments, keyword arguments. So `slow`
 * is the specification, and the only place of errors' texts. `count` is how many calls were not handed on.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define REVISION 2 /* see core/compiled/__init__.py */
#define MOST_PARTS 8
#define MOST_OFFSETS 3

typedef struct Function {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *slow;
    PyObject *parts[MOST_PARTS]; /* what the function works with; see each maker */
    Py_ssize_t offsets[MOST_OFFSETS]; /* of slots in objects among the parts */
    unsigned key_types, free_types, short_types; /* bits of `type_bit` */
    int modes[2];
    Py_ssize_t longest, most;
    long long count;
    PyObject *references; /* weak ones */
} Function;

static PyObject *name_get, *name_read, *name_pending, *name_clean, *name_kept_after, *name_newest, *name_times,
    *name_values, *name_number, *name_note, *name_has_changed,
    *name_decode;

/* ------------------------------------------------------------------ calls */

static inline int is_plain_call(size_t nargsf, PyObject *names, Py_ssize_t expected) {
    return names == NULL && PyVectorcall_NARGS(nargsf) == expected;
}

static PyObject *call_slow(Function *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    return PyObject_Vectorcall(self->slow, args, nargsf, names);
}

/* Whether the call of a function may be repeated by `slow`: an Exception, not an interrupt, was raised. It is cleared. */
static int clear_exception(void) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return 0;
    PyErr_Clear();
    return 1;
}

/* ------------------------------------------------------------------ types and records */

enum { BIT_STR = 1, BIT_BYTES = 2, BIT_INT = 4, BIT_FLOAT = 8, BIT_BOOL = 16, BIT_NONE = 32 };

static inline unsigned type_bit(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyUnicode_Type) return BIT_STR;
    if (type == &PyLong_Type) return BIT_INT;
    if (type == &PyBytes_Type) return BIT_BYTES;
    if (type == &PyFloat_Type) return BIT_FLOAT;
    if (type == &PyBool_Type) return BIT_BOOL;
    return value == Py_None ? BIT_NONE : 0;
}

/* Return the bits of the types in a set, -1 with an error. */
static int type_bits(PyObject *types, unsigned *bits) {
    PyObject *each[] = {(PyObject *)&PyUnicode_Type, (PyObject *)&PyBytes_Type, (PyObject *)&PyLong_Type,
                        (PyObject *)&PyFloat_Type,   (PyObject *)&PyBool_Type,  (PyObject *)Py_TYPE(Py_None)};
    *bits = 0;
    for (int i = 0; i < 6; i++) {
        int found = PySet_Contains(types, each[i]);
        if (found < 0) return -1;
        if (found) *bits |= 1u << i;
    }
    return 0;
}

/* Whether a value is of one of `types`, of which `bits` are the common ones. A type that cannot be hashed is of none:
 * `slow` then raises the error. */
static inline int is_of(PyObject *value, unsigned bits, PyObject *types) {
    unsigned bit = type_bit(value);
    if (bit) return (bits & bit) != 0;
    int found = PySet_Contains(types, (PyObject *)Py_TYPE(value));
    if (found < 0) PyErr_Clear();
    return found == 1;
}

/* Whether it is a tuple of four parts; one of a class with its own `__getitem__` or `__iter__` may have others. */
static inline int is_record(PyObject *record) {
    if (!PyTuple_Check(record) || PyTuple_GET_SIZE(record) != 4) return 0;
    PyTypeObject *type = Py_TYPE(record);
    return type == &PyTuple_Type || (type->tp_iter == PyTuple_Type.tp_iter && type->tp_as_mapping != NULL &&
                                     type->tp_as_mapping->mp_subscript == PyTuple_Type.tp_as_mapping->mp_subscript);
}

static PyObject *new_record(PyTypeObject *type, PyObject *key, PyObject *value, PyObject *timestamp, PyObject *headers) {
    PyObject *record = type == &PyTuple_Type ? PyTuple_New(4) : type->tp_alloc(type, 4);
    if (record == NULL) return NULL;
    PyTuple_SET_ITEM(record, 0, Py_NewRef(key));
    PyTuple_SET_ITEM(record, 1, Py_NewRef(value));
    PyTuple_SET_ITEM(record, 2, Py_NewRef(timestamp));
    PyTuple_SET_ITEM(record, 3, Py_NewRef(headers));
    return record;
}

/* Whether an object is exactly an int of 0 to 2**63 - 1. */
static inline int is_timestamp(PyObject *value) {
    if (!PyLong_CheckExact(value)) return 0;
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && number >= 0;
}

/* Return a number; one that is too large is the largest. -1 with an error if it is none. */
static long long as_number(PyObject *value) {
    if (value == NULL || !PyLong_Check(value)) {
        PyErr_Format(PyExc_TypeError, "expected an int, found %s", value == NULL ? "nothing" : Py_TYPE(value)->tp_name);
        return -1;
    }
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow ? (overflow > 0 ? PY_LLONG_MAX : PY_LLONG_MIN) : number;
}

/* ------------------------------------------------------------------ slots of Python objects */

/* Return where objects of a class have a slot, -1 with an error. */
static Py_ssize_t offset_of(PyObject *object, const char *name) {
    PyObject *member = PyObject_GetAttrString((PyObject *)Py_TYPE(object), name);
    if (member == NULL) return -1;
    Py_ssize_t offset = -1;
    if (Py_IS_TYPE(member, &PyMemberDescr_Type)) offset = ((PyMemberDescrObject *)member)->d_member->offset;
    Py_DECREF(member);
    if (offset < 0) PyErr_Format(PyExc_TypeError, "%s of %s is no slot", name, Py_TYPE(object)->tp_name);
    return offset;
}

static inline PyObject **slot_at(PyObject *object, Py_ssize_t offset) {
    return (PyObject **)((char *)object + offset);
}

static inline void set_slot(PyObject *object, Py_ssize_t offset, PyObject *value) {
    PyObject **slot = slot_at(object, offset);
    Py_XSETREF(*slot, Py_NewRef(value));
}

/* ------------------------------------------------------------------ Function and Method */

static Function *new_function(PyTypeObject *type, vectorcallfunc call, PyObject *slow) {
    if (!PyCallable_Check(slow)) {
        PyErr_Format(PyExc_TypeError, "expected a function, found %s", Py_TYPE(slow)->tp_name);
        return NULL;
    }
    Function *made = (Function *)type->tp_alloc(type, 0);
    if (made == NULL) return NULL;
    made->call = call;
    made->slow = Py_NewRef(slow);
    return made;
}

static void set_part(Function *self, int index, PyObject *part) {
    self->parts[index] = Py_NewRef(part);
}

static int function_traverse(Function *self, visitproc visit, void *arg) {
    Py_VISIT(self->slow);
    for (int i = 0; i < MOST_PARTS; i++) Py_VISIT(self->parts[i]);
    return 0;
}

static int function_clear(Function *self) {
    /* `slow` stays until the end: a function that is called while its cycle is taken apart needs it. */
    for (int i = 0; i < MOST_PARTS; i++) Py_CLEAR(self->parts[i]);
    return 0;
}

static PyObject *call_cleared(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    return call_slow((Function *)self, args, nargsf, names);
}

static int function_clear_for_collector(Function *self) {
    self->call = call_cleared;
    function_clear(self);
    Py_XSETREF(self->slow, Py_NewRef(Py_None));
    return 0;
}

static void function_dealloc(Function *self) {
    PyObject_GC_UnTrack(self);
    if (self->references != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    function_clear(self);
    Py_CLEAR(self->slow);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* What is asked of a function (its name, its code) is answered by `slow`. */
static PyObject *function_getattr(PyObject *self, PyObject *name) {
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(((Function *)self)->slow, name);
}

static int function_setattr(PyObject *self, PyObject *name, PyObject *value) {
    return PyObject_SetAttr(((Function *)self)->slow, name, value);
}

static PyObject *function_repr(Function *self) {
    return PyObject_Repr(self->slow);
}

/* By name, as a function: a copy is the function itself. */
static PyObject *function_reduce(Function *self, PyObject *ignored) {
    (void)ignored;
    return PyObject_GetAttrString(self->slow, "__qualname__");
}

static PyObject *function_doc(Function *self, void *ignored) {
    (void)ignored;
    return PyObject_GetAttrString(self->slow, "__doc__");
}

static PyObject *method_get(PyObject *self, PyObject *object, PyObject *type) {
    (void)type;
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyMemberDef members[] = {
    {"count", T_LONGLONG, offsetof(Function, count), READONLY, "calls that `__wrapped__` did not get"},
    {"__wrapped__", T_OBJECT, offsetof(Function, slow), READONLY, "the Python function that this one stands for"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"__reduce__", (PyCFunction)(void (*)(void))function_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* A type has a `__doc__` of its own, which `function_getattr` would find. */
static PyGetSetDef computed[] = {
    {"__doc__", (getter)(void (*)(void))function_doc, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define FUNCTION_TYPE(NAME, FLAGS)                                                                            \
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "penstock.compiled._records." NAME,                              \
    .tp_basicsize = sizeof(Function), .tp_vectorcall_offset = offsetof(Function, call),                       \
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | FLAGS,                 \
    .tp_call = PyVectorcall_Call, .tp_traverse = (traverseproc)function_traverse,                             \
    .tp_clear = (inquiry)function_clear_for_collector, .tp_dealloc = (destructor)function_dealloc,            \
    .tp_getattro = function_getattr, .tp_setattro = function_setattr, .tp_repr = (reprfunc)function_repr,     \
    .tp_weaklistoffset = offsetof(Function, references), .tp_members = members, .tp_methods = methods,        \
    .tp_getset = computed

static PyTypeObject FunctionType = {FUNCTION_TYPE("Function", 0)};
static PyTypeObject MethodType = {FUNCTION_TYPE("Method", Py_TPFLAGS_METHOD_DESCRIPTOR), .tp_descr_get = method_get};

/* ------------------------------------------------------------------ serializers */

/* How compiled code does what a serde's `serializer` does: without its call, where that is known to it. */
typedef enum { BY_CALL, AS_TEXT, AS_BYTES, AS_INT64, AROUND } Mode;

static PyObject *int64_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names);
static PyObject *around_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names);
static PyObject *str_encode, *bytes_bytes;

static Mode mode_of(PyObject *function) {
    if (function == str_encode) return AS_TEXT;
    if (function == bytes_bytes) return AS_BYTES;
    if (!Py_IS_TYPE(function, &FunctionType)) return BY_CALL;
    vectorcallfunc call = ((Function *)function)->call;
    return call == int64_call ? AS_INT64 : call == around_call ? AROUND : BY_CALL;
}

static void pack_int64(char *data, long long number) {
    unsigned long long left = (unsigned long long)number;
    for (int at = 7; at >= 0; at--, left >>= 8) data[at] = (char)(left & 0xff);
}

static long long unpack_int64(const char *data) {
    unsigned long long number = 0;
    for (int at = 0; at < 8; at++) number = number << 8 | (unsigned char)data[at];
    return (long long)number;
}

/* Return `before`, some bytes and `behind` in one, NULL with an error. */
static PyObject *joined(PyObject *before, const char *data, Py_ssize_t size, PyObject *behind) {
    Py_ssize_t head = PyBytes_GET_SIZE(before), tail = behind == NULL ? 0 : PyBytes_GET_SIZE(behind);
    PyObject *made = PyBytes_FromStringAndSize(NULL, head + size + tail);
    if (made == NULL) return NULL;
    char *at = PyBytes_AS_STRING(made);
    memcpy(at, PyBytes_AS_STRING(before), (size_t)head);
    memcpy(at + head, data, (size_t)size);
    if (tail) memcpy(at + head + size, PyBytes_AS_STRING(behind), (size_t)tail);
    return made;
}

/* Return a part of a record as what `function` returns for it, None for None; NULL with an error. */
static PyObject *to_bytes(Mode mode, PyObject *function, PyObject *part) {
    if (part == Py_None) return Py_NewRef(part);
    switch (mode) {
    case AS_TEXT:
        if (PyUnicode_CheckExact(part)) return PyUnicode_AsUTF8String(part);
        break;
    case AS_BYTES:
        if (PyBytes_CheckExact(part)) return Py_NewRef(part);
        break;
    case AS_INT64:
    case AROUND: return ((Function *)function)->call(function, &part, 1, NULL);
    case BY_CALL: break;
    }
    return PyObject_CallOneArg(function, part);
}

/* int64(slow): the serializer of ints in 8 bytes. */
static PyObject *int64_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (is_plain_call(nargsf, names, 1) && PyLong_CheckExact(args[0])) {
        int overflow;
        char data[8];
        long long number = PyLong_AsLongLongAndOverflow(args[0], &overflow);
        if (!overflow) {
            pack_int64(data, number);
            return PyBytes_FromStringAndSize(data, 8);
        }
    }
    return call_slow(self, args, nargsf, names);
}

static PyObject *int64(PyObject *module, PyObject *slow) {
    (void)module;
    return (PyObject *)new_function(&FunctionType, int64_call, slow);
}

/* around(slow, serializer, before, behind): a key between other bytes, where it has no byte 0. */
static PyObject *around_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    PyObject *raw = NULL, *made = NULL;
    if (is_plain_call(nargsf, names, 1)) {
        raw = to_bytes((Mode)self->modes[0], self->parts[0], args[0]);
        if (raw == NULL && !clear_exception()) return NULL;
    }
    if (raw != NULL && PyBytes_CheckExact(raw) &&
        memchr(PyBytes_AS_STRING(raw), 0, (size_t)PyBytes_GET_SIZE(raw)) == NULL) {
        made = joined(self->parts[1], PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw), self->parts[2]);
        Py_DECREF(raw);
        return made;
    }
    Py_XDECREF(raw);
    return call_slow(self, args, nargsf, names);
}

static PyObject *around(PyObject *module, PyObject *args) {
    PyObject *slow, *serializer, *before, *behind;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOSS", &slow, &serializer, &before, &behind)) return NULL;
    Function *made = new_function(&FunctionType, around_call, slow);
    if (made == NULL) return NULL;
    made->modes[0] = (int)mode_of(serializer);
    set_part(made, 0, serializer);
    set_part(made, 1, before);
    set_part(made, 2, behind);
    return (PyObject *)made;
}

/* ------------------------------------------------------------------ records */

/* with_part(slow, type, index): the method `with_key` and its kind, of a record type. */
static PyObject *with_part_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (!is_plain_call(nargsf, names, 2) || !is_record(args[0])) return call_slow(self, args, nargsf, names);
    PyObject *parts[4];
    for (int i = 0; i < 4; i++) parts[i] = i == self->modes[0] ? args[1] : PyTuple_GET_ITEM(args[0], i);
    return new_record((PyTypeObject *)self->parts[0], parts[0], parts[1], parts[2], parts[3]);
}

static PyObject *with_part(PyObject *module, PyObject *args) {
    PyObject *slow, *type;
    int index;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!i", &slow, &PyType_Type, &type, &index)) return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type) || index < 0 || index > 3) {
        PyErr_SetString(PyExc_TypeError, "expected a type of tuples, and an index of 0 to 3");
        return NULL;
    }
    Function *made = new_function(&MethodType, with_part_call, slow);
    if (made == NULL) return NULL;
    set_part(made, 0, type);
    made->modes[0] = index;
    return (PyObject *)made;
}

/* rows(keys, values, timestamps, headers or None, type or None) -> records of that type, or tuples. */
static PyObject *rows(PyObject *module, PyObject *args) {
    PyObject *columns[4], *type, *fast[4] = {NULL}, *made = NULL, *no_headers = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOO", &columns[0], &columns[1], &columns[2], &columns[3], &type)) return NULL;
    PyTypeObject *kind = type == Py_None ? &PyTuple_Type : (PyTypeObject *)type;
    int used = columns[3] == Py_None ? 3 : 4;
    Py_ssize_t size = PY_SSIZE_T_MAX;
    for (int i = 0; i < used; i++) {
        fast[i] = PySequence_Fast(columns[i], "a column is a sequence");
        if (fast[i] == NULL) goto done;
        if (PySequence_Fast_GET_SIZE(fast[i]) < size) size = PySequence_Fast_GET_SIZE(fast[i]);
    }
    no_headers = PyTuple_New(0);
    made = no_headers == NULL ? NULL : PyList_New(size);
    for (Py_ssize_t at = 0; made != NULL && at < size; at++) {
        PyObject *headers = used == 4 ? PySequence_Fast_GET_ITEM(fast[3], at) : no_headers;
        PyObject *record = new_record(kind, PySequence_Fast_GET_ITEM(fast[0], at), PySequence_Fast_GET_ITEM(fast[1], at),
                                      PySequence_Fast_GET_ITEM(fast[2], at), headers);
        if (record == NULL) Py_CLEAR(made);
        else PyList_SET_ITEM(made, at, record);
    }
done:
    Py_XDECREF(no_headers);
    for (int i = 0; i < used; i++) Py_XDECREF(fast[i]);
    return made;
}

/* texts(column) -> a list of what UTF-8 in bytes says, None for None, and what `decode` of anything else returns. */
static PyObject *texts(PyObject *module, PyObject *column) {
    (void)module;
    PyObject *fast = PySequence_Fast(column, "a column is a sequence");
    if (fast == NULL) return NULL;
    Py_ssize_t size = PySequence_Fast_GET_SIZE(fast);
    PyObject *made = PyList_New(size);
    for (Py_ssize_t at = 0; made != NULL && at < size; at++) {
        PyObject *data = PySequence_Fast_GET_ITEM(fast, at), *text = NULL;
        if (data == Py_None) text = Py_NewRef(Py_None);
        else if (PyBytes_CheckExact(data)) text = PyUnicode_DecodeUTF8(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), NULL);
        else {
            Py_INCREF(data);
            text = PyObject_CallMethodNoArgs(data, name_decode);
            Py_DECREF(data);
            if (text != NULL && PySequence_Fast_GET_SIZE(fast) != size) {
                PyErr_SetString(PyExc_RuntimeError, "the column changed while it was decoded");
                Py_CLEAR(text);
            }
        }
        if (text == NULL) Py_CLEAR(made);
        else PyList_SET_ITEM(made, at, text);
    }
    Py_DECREF(fast);
    return made;
}

/* ------------------------------------------------------------------ the loop over records */

/* Whether an object is exactly an int of 64 bits, which `number` then is. */
static inline int is_int64(PyObject *value, long long *number) {
    if (value == NULL || !PyLong_CheckExact(value)) return 0;
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow;
}

/* Have `slow` process a record that the iterator has returned already, and all others. */
static PyObject *run_slowly(Function *self, PyObject *record, PyObject *const *args) {
    PyObject *first = PyTuple_Pack(1, record);
    PyObject *all = first == NULL ? NULL : PyObject_CallFunctionObjArgs(self->parts[0], first, args[0], NULL);
    Py_XDECREF(first);
    if (all == NULL) return NULL;
    PyObject *others[] = {all, args[1], args[2], args[3], args[4]};
    PyObject *result = PyObject_Vectorcall(self->slow, others, 5, NULL);
    Py_DECREF(all);
    return result;
}

/* run_records(slow, chain) -> (remaining, run, progress, queue, stream_due): the loop over records. `chain` is that of
 * itertools: `slow` gets what remains from a record on whose timestamp is no int of 64 bits. */
static PyObject *run_records_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (!is_plain_call(nargsf, names, 5) || !PyIter_Check(args[0])) return call_slow(self, args, nargsf, names);
    PyObject *remaining = args[0], *run = args[1], *progress = args[2], *queue = args[3];
    iternextfunc next = Py_TYPE(remaining)->tp_iternext;
    Py_ssize_t attention = offset_of(progress, "needs_attention"), clock = offset_of(progress, "stream_time"),
               input_time = offset_of(queue, "partition_time");
    if (attention < 0 || clock < 0 || input_time < 0) return NULL;
    long long due, stream_time, highest, timestamp;
    if (!is_int64(args[4], &due) || !is_int64(*slot_at(progress, clock), &stream_time) ||
        !is_int64(*slot_at(queue, input_time), &highest))
        return call_slow(self, args, nargsf, names);
    PyObject *record;
    while ((record = next(remaining)) != NULL) {
        PyObject *stamp = is_record(record) ? PyTuple_GET_ITEM(record, 2) : NULL, *result;
        if (!is_int64(stamp, &timestamp)) {
            result = run_slowly(self, record, args);
            Py_DECREF(record);
            return result;
        }
        if (timestamp > highest) {
            highest = timestamp;
            set_slot(queue, input_time, stamp);
            if (timestamp > stream_time) {
                stream_time = timestamp;
                set_slot(progress, clock, stamp);
            }
        }
        result = PyObject_CallOneArg(run, record);
        Py_DECREF(record);
        if (result == NULL) return NULL;
        Py_DECREF(result);
        if (stream_time >= due || *slot_at(progress, attention) != Py_False) Py_RETURN_NONE;
    }
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return NULL;
        PyErr_Clear();
    }
    Py_RETURN_NONE;
}

static PyObject *run_records(PyObject *module, PyObject *args) {
    PyObject *slow, *chain;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &slow, &chain)) return NULL;
    Function *made = new_function(&FunctionType, run_records_call, slow);
    if (made != NULL) set_part(made, 0, chain);
    return (PyObject *)made;
}

/* ------------------------------------------------------------------ edges between nodes */

/* Call `failed(child, record, error)` for the error that is set, as an `except` clause does: it is the exception that is
 * handled meanwhile. Not by PyErr_SetHandledException: in a generator, the one before could not be restored. */
static PyObject *ask_handler(PyObject *failed, PyObject *child, PyObject *record) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    _PyErr_StackItem *handled = PyThreadState_Get()->exc_info;
    PyObject *outer = handled->exc_value;
    handled->exc_value = Py_NewRef(error);
    PyObject *args[] = {child, record, error};
    PyObject *result = PyObject_Vectorcall(failed, args, 3, NULL);
    Py_XSETREF(handled->exc_value, outer);
    Py_DECREF(error);
    return result;
}

/* forward(slow, run, failed, child, errors, immutable or None): an edge to an only child.
 *
 * With `immutable` types, a record whose key and value are of these goes to the child, and each other one to `slow`. */
enum { RUN, FAILED, CHILD, ERRORS, UNCHANGED };

static PyObject *forward_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (!is_plain_call(nargsf, names, 1)) return call_slow(self, args, nargsf, names);
    PyObject *record = args[0], *types = self->parts[UNCHANGED];
    if (types != NULL && !(is_record(record) && is_of(PyTuple_GET_ITEM(record, 1), self->free_types, types) &&
                           is_of(PyTuple_GET_ITEM(record, 0), self->free_types, types)))
        return call_slow(self, args, nargsf, names);
    self->count++;
    PyObject *result = PyObject_CallOneArg(self->parts[RUN], record);
    if (result == NULL && PyErr_ExceptionMatches(self->parts[ERRORS]))
        result = ask_handler(self->parts[FAILED], self->parts[CHILD], record);
    if (result == NULL) return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static PyObject *forward(PyObject *module, PyObject *args) {
    PyObject *slow, *run, *failed, *child, *errors, *types;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOO!O", &slow, &run, &failed, &child, &PyTuple_Type, &errors, &types)) return NULL;
    Function *made = new_function(&FunctionType, forward_call, slow);
    if (made == NULL) return NULL;
    set_part(made, RUN, run);
    set_part(made, FAILED, failed);
    set_part(made, CHILD, child);
    set_part(made, ERRORS, errors);
    if (types != Py_None) {
        set_part(made, UNCHANGED, types);
        if (type_bits(types, &made->free_types) < 0) Py_CLEAR(made);
    }
    return (PyObject *)made;
}

/* transformer(slow, transform, forward, type): a node that gives each record another value. */
static PyObject *transformer_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (!is_plain_call(nargsf, names, 1) || !is_record(args[0])) return call_slow(self, args, nargsf, names);
    PyObject *record = args[0], *parts[] = {PyTuple_GET_ITEM(record, 0), PyTuple_GET_ITEM(record, 1)};
    self->count++;
    PyObject *value = PyObject_Vectorcall(self->parts[0], parts, 2, NULL);
    if (value == NULL) return NULL;
    PyObject *changed = new_record((PyTypeObject *)self->parts[2], parts[0], value, PyTuple_GET_ITEM(record, 2),
                                   PyTuple_GET_ITEM(record, 3));
    Py_DECREF(value);
    if (changed == NULL) return NULL;
    PyObject *result = PyObject_CallOneArg(self->parts[1], changed);
    Py_DECREF(changed);
    if (result == NULL) return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static PyObject *transformer(PyObject *module, PyObject *args) {
    PyObject *slow, *transform, *forward_to, *type;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO!", &slow, &transform, &forward_to, &PyType_Type, &type)) return NULL;
    Function *made = new_function(&FunctionType, transformer_call, slow);
    if (made == NULL) return NULL;
    set_part(made, 0, transform);
    set_part(made, 1, forward_to);
    set_part(made, 2, type);
    return (PyObject *)made;
}

/* noting(slow, process, progress): a node with a record cache; `progress.record` is the record while it works. */
static PyObject *noting_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (!is_plain_call(nargsf, names, 1)) return call_slow(self, args, nargsf, names);
    PyObject *progress = self->parts[1];
    PyObject *outer = Py_XNewRef(*slot_at(progress, self->offsets[0]));
    set_slot(progress, self->offsets[0], args[0]);
    self->count++;
    PyObject *result = PyObject_CallOneArg(self->parts[0], args[0]);
    Py_XSETREF(*slot_at(progress, self->offsets[0]), outer);
    if (result == NULL) return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static PyObject *noting(PyObject *module, PyObject *args) {
    PyObject *slow, *process, *progress;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO", &slow, &process, &progress)) return NULL;
    Py_ssize_t offset = offset_of(progress, "record");
    if (offset < 0) return NULL;
    Function *made = new_function(&FunctionType, noting_call, slow);
    if (made == NULL) return NULL;
    set_part(made, 0, process);
    set_part(made, 1, progress);
    made->offsets[0] = offset;
    return (PyObject *)made;
}

/* ------------------------------------------------------------------ what sinks write */

enum { OUTPUT, KEYS, VALUES, STAMPS, KEY_FUNCTION, VALUE_FUNCTION };
/* Append to a column that a topic may have. */
static int append_to(PyObject *column, PyObject *item) {
    return column == NULL || column == Py_None ? 0 : PyList_Append(column, item);
}

/* write(slow, output, key_function, value_function): appends records to a topic's columns. */
static PyObject *write_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    PyObject *output = self->parts[OUTPUT];
    if (!is_plain_call(nargsf, names, 1) || !is_record(args[0])) return call_slow(self, args, nargsf, names);
    PyObject *record = args[0], *stamp = PyTuple_GET_ITEM(record, 2), *headers = PyTuple_GET_ITEM(record, 3);
    if (!is_timestamp(stamp) || !PyTuple_CheckExact(headers) || PyTuple_GET_SIZE(headers) != 0)
        return call_slow(self, args, nargsf, names);
    PyObject *key = to_bytes((Mode)self->modes[0], self->parts[KEY_FUNCTION], PyTuple_GET_ITEM(record, 0));
    PyObject *value = NULL;
    if (key != NULL) value = to_bytes((Mode)self->modes[1], self->parts[VALUE_FUNCTION], PyTuple_GET_ITEM(record, 1));
    if (value == NULL) {
        Py_XDECREF(key);
        if (clear_exception()) return call_slow(self, args, nargsf, names);
        self->count++; /* as `slow`, which counts a record before it serializes it */
        return NULL;
    }
    /* Only now: a serde may have written to this topic. */
    PyObject *also[MOST_OFFSETS] = {headers, Py_None, key};
    int failed = PyList_Append(self->parts[KEYS], key) || PyList_Append(self->parts[VALUES], value) ||
                 PyList_Append(self->parts[STAMPS], stamp);
    for (int i = 0; i < MOST_OFFSETS; i++) failed = failed || append_to(*slot_at(output, self->offsets[i]), also[i]);
    Py_DECREF(key);
    Py_DECREF(value);
    if (failed) return NULL;
    self->count++;
    Py_RETURN_NONE;
}

static PyObject *write_(PyObject *module, PyObject *args) {
    PyObject *slow, *output, *key_function, *value_function;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO", &slow, &output, &key_function, &value_function)) return NULL;
    const char *rare[] = {"headers", "partitions", "hashed"}; /* columns that most topics have not */
    Py_ssize_t offsets[MOST_OFFSETS];
    for (int i = 0; i < MOST_OFFSETS; i++)
        if ((offsets[i] = offset_of(output, rare[i])) < 0) return NULL;
    Function *made = new_function(&FunctionType, write_call, slow);
    if (made == NULL) return NULL;
    memcpy(made->offsets, offsets, sizeof(offsets));
    made->modes[0] = (int)mode_of(key_function);
    made->modes[1] = (int)mode_of(value_function);
    set_part(made, OUTPUT, output);
    set_part(made, KEY_FUNCTION, key_function);
    set_part(made, VALUE_FUNCTION, value_function);
    const char *columns[] = {"keys", "values", "timestamps"};
    for (int i = 0; i < 3; i++) {
        PyObject *column = PyObject_GetAttrString(output, columns[i]);
        if (column != NULL && !PyList_CheckExact(column)) {
            PyErr_Format(PyExc_TypeError, "expected a list of %s", columns[i]);
            Py_CLEAR(column);
        }
        if (column == NULL) {
            Py_DECREF(made);
            return NULL;
        }
        made->parts[KEYS + i] = column;
    }
    return (PyObject *)made;
}

/* ------------------------------------------------------------------ single entries of stores */

/* Whether a key is exactly of one of a store's types whose entries are kept as objects. */
static inline int is_key(Function *self, PyObject *key) {
    return (type_bit(key) & self->key_types) != 0;
}

/* Return what one of two dicts has under a key, NULL without an error if neither has it. New reference. */
static PyObject *find(PyObject *pending, PyObject *clean, PyObject *key) {
    PyObject *found = PyDict_GetItemWithError(pending, key);
    if (found == NULL && !PyErr_Occurred()) found = PyDict_GetItemWithError(clean, key);
    return Py_XNewRef(found);
}

/* What may wait for a commit as an object; see `ValueForm.fit`. */
enum { SHORT, ASCII, INT64 };

static int take_fit(Function *made, int types_at, int stamp_at, PyObject *fit) {
    PyObject *free_types, *short_types, *stamp;
    if (!PyArg_ParseTuple(fit, "OiOnO", &free_types, &made->modes[0], &short_types, &made->longest, &stamp)) return -1;
    if (type_bits(short_types, &made->short_types) < 0) return -1;
    set_part(made, types_at, free_types);
    if (stamp != Py_None) set_part(made, stamp_at, stamp);
    return type_bits(free_types, &made->free_types);
}

/* The first bytes of envelopes; see core/store/envelope.py. */
enum { PLAIN = 0, STAMPED = 2, STAMP_BYTES = 9 };

/* Return the envelope of a value, None for None; NULL with an error. */
static PyObject *row_of(Mode mode, PyObject *function, PyObject *value, int is_stamped) {
    char head[STAMP_BYTES] = {PLAIN};
    if (value == Py_None) return Py_NewRef(value);
    if (is_stamped) {
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2 || !PyLong_CheckExact(PyTuple_GET_ITEM(value, 1)))
            return PyErr_Format(PyExc_TypeError, "expected a value and its timestamp");
        long long stamp = PyLong_AsLongLong(PyTuple_GET_ITEM(value, 1));
        if (stamp == -1 && PyErr_Occurred()) return NULL;
        head[0] = STAMPED;
        pack_int64(head + 1, stamp);
        value = PyTuple_GET_ITEM(value, 0);
        if (value == Py_None) return PyErr_Format(PyExc_TypeError, "expected a value, found None");
    }
    PyObject *content = to_bytes(mode, function, value), *before, *row = NULL;
    if (content == NULL) return NULL;
    if (!PyBytes_CheckExact(content)) {
        PyErr_Format(PyExc_TypeError, "expected bytes, found %s", Py_TYPE(content)->tp_name);
    } else if ((before = PyBytes_FromStringAndSize(head, is_stamped ? STAMP_BYTES : 1)) != NULL) {
        row = joined(before, PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content), NULL);
        Py_DECREF(before);
    }
    Py_DECREF(content);
    return row;
}

static int may_wait(Function *self, PyObject *free_types, PyObject *stamp_type, PyObject *value) {
    if (stamp_type != NULL) {
        if ((PyObject *)Py_TYPE(value) != stamp_type || PyTuple_GET_SIZE(value) != 2 ||
            !is_timestamp(PyTuple_GET_ITEM(value, 1)))
            return 0;
        value = PyTuple_GET_ITEM(value, 0);
    }
    if (is_of(value, self->free_types, free_types)) return 1;
    switch (self->modes[0]) {
    case INT64: {
        int overflow;
        if (!PyLong_CheckExact(value)) return 0;
        PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow;
    }
    case ASCII:
        return PyUnicode_CheckExact(value) && PyUnicode_IS_ASCII(value) && PyUnicode_GET_LENGTH(value) <= self->longest;
    default:
        if (!(type_bit(value) & self->short_types)) return 0;
        return PyObject_Size(value) <= self->longest; /* of a str or bytes, so it cannot fail */
    }
}

/* encode(entries, key_function, value_function, is_stamped) -> the rows of entries; None is a row to delete. */
static PyObject *encode(PyObject *module, PyObject *args) {
    PyObject *entries, *key_function, *value_function, *key, *value;
    int is_stamped;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!OOp", &PyDict_Type, &entries, &key_function, &value_function, &is_stamped)) return NULL;
    Mode key_mode = mode_of(key_function), value_mode = mode_of(value_function);
    PyObject *rows = PyDict_New(), *items = PyDict_Items(entries); /* it holds on to what a serializer drops */
    if (rows == NULL || items == NULL) goto failed;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(items); at++) {
        key = PyTuple_GET_ITEM(PyList_GET_ITEM(items, at), 0);
        value = PyTuple_GET_ITEM(PyList_GET_ITEM(items, at), 1);
        PyObject *row_key = to_bytes(key_mode, key_function, key);
        PyObject *row = row_key == NULL ? NULL : row_of(value_mode, value_function, value, is_stamped);
        int failed = row == NULL || PyDict_SetItem(rows, row_key, row) < 0;
        if (!failed && PyDict_GET_SIZE(entries) != PyList_GET_SIZE(items)) {
            PyErr_SetString(PyExc_RuntimeError, "a serializer has changed the entries");
            failed = 1;
        }
        Py_XDECREF(row_key);
        Py_XDECREF(row);
        if (failed) goto failed;
    }
    Py_DECREF(items);
    return rows;
failed:
    Py_XDECREF(items);
    Py_XDECREF(rows);
    return NULL;
}

enum { PENDING, CLEAN, FREE_TYPES, STAMP, BELOW, KEY_BYTES, DESERIALIZE, KEPT_TYPES };

/* Return the value in an envelope, NULL without an error where `slow` has to look. */
static PyObject *from_row(Function *self, PyObject *data) {
    if (!PyBytes_CheckExact(data)) return NULL;
    const char *at = PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data), head = self->parts[STAMP] == NULL ? 1 : STAMP_BYTES;
    if (size < head || at[0] != (head == 1 ? PLAIN : STAMPED)) return NULL;
    PyObject *value = NULL, *content;
    switch (self->modes[1]) {
    case ASCII: value = PyUnicode_DecodeUTF8(at + head, size - head, NULL); break;
    case INT64:
        if (size - head != 8) return NULL;
        value = PyLong_FromLongLong(unpack_int64(at + head));
        break;
    default:
        content = PyBytes_FromStringAndSize(at + head, size - head);
        if (content == NULL) return NULL;
        value = PyObject_CallOneArg(self->parts[DESERIALIZE], content);
        Py_DECREF(content);
    }
    if (value == NULL || self->parts[STAMP] == NULL) return value;
    PyTypeObject *type = (PyTypeObject *)self->parts[STAMP];
    PyObject *stamp = PyLong_FromLongLong(unpack_int64(at + 1)), *made = stamp == NULL ? NULL : type->tp_alloc(type, 2);
    if (made == NULL) {
        Py_DECREF(value);
        Py_XDECREF(stamp);
        return NULL;
    }
    PyTuple_SET_ITEM(made, 0, value);
    PyTuple_SET_ITEM(made, 1, stamp);
    return made;
}

/* Whether a value may be kept as an object; see `ValueForm.can_keep`. */
static int may_be_kept(Function *self, PyObject *value) {
    if (self->parts[STAMP] != NULL) value = PyTuple_GET_ITEM(value, 0);
    if (is_of(value, self->free_types, self->parts[KEPT_TYPES])) return 1;
    return (type_bit(value) & self->short_types) && PyObject_Size(value) <= self->longest;
}

/* Read an entry that is not kept as an object, and keep it. NULL without an error where `slow` has to do that. */
static PyObject *read_entry(Function *self, PyObject *key) {
    PyObject *clean = self->parts[CLEAN];
    if (PyDict_GET_SIZE(clean) >= self->most) return NULL;
    PyObject *raw = to_bytes((Mode)self->modes[0], self->parts[KEY_BYTES], key), *data = NULL, *value = NULL;
    if (raw != NULL && self->modes[0] == BY_CALL && (value = find(self->parts[PENDING], clean, key)) != NULL) {
        Py_DECREF(raw); /* the serde has put it */
        return value;
    }
    if (raw != NULL && PyBytes_CheckExact(raw) && PyBytes_GET_SIZE(raw) <= self->longest)
        data = PyObject_CallMethodOneArg(self->parts[BELOW], name_get, raw);
    Py_XDECREF(raw);
    if (data != NULL) value = data == Py_None ? Py_NewRef(data) : from_row(self, data);
    Py_XDECREF(data);
    if (value != NULL && (value == Py_None || may_be_kept(self, value)) && PyDict_SetItem(clean, key, value) < 0)
        Py_CLEAR(value);
    if (value == NULL && PyErr_Occurred()) clear_exception(); /* `slow` raises it again, and says where */
    return value;
}

/* get(slow, pending, clean, key_types, reading): the value of a key. */
static PyObject *get_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (is_plain_call(nargsf, names, 1) && is_key(self, args[0])) {
        PyObject *found = find(self->parts[PENDING], self->parts[CLEAN], args[0]);
        if (found == NULL && !PyErr_Occurred() && self->parts[BELOW] != NULL) found = read_entry(self, args[0]);
        if (found != NULL) {
            self->count++;
            return found;
        }
        if (PyErr_Occurred()) {
            self->count++; /* as `slow`, which counts first */
            return NULL;
        }
    }
    return call_slow(self, args, nargsf, names);
}

static Function *of_entries(vectorcallfunc call, PyObject *slow, PyObject *pending, PyObject *clean, PyObject *types) {
    Function *made = new_function(&FunctionType, call, slow);
    if (made == NULL) return NULL;
    set_part(made, PENDING, pending);
    set_part(made, CLEAN, clean);
    if (type_bits(types, &made->key_types) < 0) Py_CLEAR(made);
    return made;
}

/* (below, key_function, deserialize, kept_types, short_types, mode, stamp type or None, longest, most entries) */
static int take_reading(Function *made, PyObject *reading) {
    PyObject *below, *key_function, *deserialize, *kept, *sized, *stamp;
    if (!PyArg_ParseTuple(reading, "OOOOOiOnn", &below, &key_function, &deserialize, &kept, &sized, &made->modes[1], &stamp,
                          &made->longest, &made->most))
        return -1;
    made->modes[0] = (int)mode_of(key_function);
    set_part(made, BELOW, below);
    set_part(made, KEY_BYTES, key_function);
    set_part(made, DESERIALIZE, deserialize);
    set_part(made, KEPT_TYPES, kept);
    if (stamp != Py_None) set_part(made, STAMP, stamp);
    return type_bits(kept, &made->free_types) < 0 || type_bits(sized, &made->short_types) < 0 ? -1 : 0;
}

static PyObject *get(PyObject *module, PyObject *args) {
    PyObject *slow, *pending, *clean, *types, *reading;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!O!OO", &slow, &PyDict_Type, &pending, &PyDict_Type, &clean, &types, &reading))
        return NULL;
    Function *made = of_entries(get_call, slow, pending, clean, types);
    if (made != NULL && reading != Py_None && take_reading(made, reading) < 0) Py_CLEAR(made);
    return (PyObject *)made;
}

/* read_through(slow, changes, buffer, store, timed): what a buffer has under a key, or else the backend; one of
 * `READS_TIMED` reads of that is `timed`. */
enum { CHANGES, BUFFER, STORE, TIMED };

static PyObject *read_through_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (!is_plain_call(nargsf, names, 1)) return call_slow(self, args, nargsf, names);
    PyObject *found = PyDict_GetItemWithError(self->parts[CHANGES], args[0]);
    if (found != NULL) return Py_NewRef(found);
    if (PyErr_Occurred()) return NULL;
    if (++self->count % self->most == 0) return PyObject_CallOneArg(self->parts[TIMED], args[0]);
    PyObject *read = PyObject_GetAttr(self->parts[BUFFER], name_read);
    if (read == NULL) return NULL;
    PyObject *both[] = {self->parts[STORE], args[0]};
    found = PyObject_Vectorcall(read, both, 2, NULL);
    Py_DECREF(read);
    return found;
}

static PyObject *read_through(PyObject *module, PyObject *args) {
    PyObject *slow, *changes, *buffer, *store, *timed;
    Py_ssize_t one_of;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!OOOn", &slow, &PyDict_Type, &changes, &buffer, &store, &timed, &one_of)) return NULL;
    Function *made = new_function(&FunctionType, read_through_call, slow);
    if (made == NULL) return NULL;
    set_part(made, CHANGES, changes);
    set_part(made, BUFFER, buffer);
    set_part(made, STORE, store);
    set_part(made, TIMED, timed);
    made->most = one_of > 0 ? one_of : 1;
    return (PyObject *)made;
}

/* put(slow, pending, clean, key_types, fit): a value that may wait, under a key that the serde is known to take. */
static PyObject *put_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (is_plain_call(nargsf, names, 2) && is_key(self, args[0]) &&
        may_wait(self, self->parts[FREE_TYPES], self->parts[STAMP], args[1])) {
        PyObject *pending = self->parts[PENDING];
        int is_known = PyDict_Contains(pending, args[0]);
        if (is_known == 0) is_known = PyDict_Contains(self->parts[CLEAN], args[0]);
        if (is_known < 0) return NULL;
        if (is_known) {
            if (PyDict_SetItem(pending, args[0], args[1]) < 0) return NULL;
            self->count++;
            Py_RETURN_NONE;
        }
    }
    return call_slow(self, args, nargsf, names);
}

static PyObject *put(PyObject *module, PyObject *args) {
    PyObject *slow, *pending, *clean, *types, *fit;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!O!OO!", &slow, &PyDict_Type, &pending, &PyDict_Type, &clean, &types, &PyTuple_Type,
                          &fit))
        return NULL;
    Function *made = of_entries(put_call, slow, pending, clean, types);
    if (made != NULL && take_fit(made, FREE_TYPES, STAMP, fit) < 0) Py_CLEAR(made);
    return (PyObject *)made;
}

/* ------------------------------------------------------------------ single entries of window stores */

enum { OPENED, RETENTION, RECENT, WINDOW_TYPES, WINDOW_STAMP, CHANGED };

/* Return a number that an object has as an attribute, -1 with an error. */
static long long number_of(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) return -1;
    long long number = as_number(value);
    Py_DECREF(value);
    return number;
}

/* Whether an open window has an entry. 1, 0, -1 with an error; `pending` is then a new reference. */
static int has_entry(PyObject *window, PyObject *key, PyObject **pending) {
    *pending = PyObject_GetAttr(window, name_pending);
    if (*pending == NULL || !PyDict_CheckExact(*pending)) return *pending == NULL ? -1 : 0;
    int is_there = PyDict_Contains(*pending, key);
    if (is_there != 0) return is_there;
    PyObject *clean = PyObject_GetAttr(window, name_clean);
    if (clean == NULL) return -1;
    is_there = PyDict_CheckExact(clean) ? PyDict_Contains(clean, key) : 0;
    Py_DECREF(clean);
    return is_there;
}

/* Return the entry of an open window, NULL without an error if it has none as an object. New reference. */
static PyObject *entry_of(PyObject *window, PyObject *key) {
    PyObject *pending = PyObject_GetAttr(window, name_pending), *clean = NULL, *found = NULL;
    if (pending != NULL) clean = PyObject_GetAttr(window, name_clean);
    if (clean != NULL && PyDict_CheckExact(pending) && PyDict_CheckExact(clean)) found = find(pending, clean, key);
    Py_XDECREF(pending);
    Py_XDECREF(clean);
    return found;
}

/* fetch(slow, opened, retention, key_types): the value of a key in one window that is kept as an object. */
static PyObject *fetch_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (is_plain_call(nargsf, names, 2) && PyLong_CheckExact(args[1]) && is_key(self, args[0])) {
        PyObject *window = PyDict_GetItemWithError(self->parts[OPENED], args[1]);
        if (window == NULL && PyErr_Occurred()) return NULL;
        if (window != NULL) {
            Py_INCREF(window);
            long long kept_after = number_of(self->parts[RETENTION], name_kept_after), start = as_number(args[1]);
            PyObject *found = !PyErr_Occurred() && start > kept_after ? entry_of(window, args[0]) : NULL;
            Py_DECREF(window);
            if (found != NULL) {
                self->count++;
                return found;
            }
            if (PyErr_Occurred()) return NULL;
        }
    }
    return call_slow(self, args, nargsf, names);
}

static PyObject *fetch(PyObject *module, PyObject *args) {
    PyObject *slow, *opened, *retention, *types;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!OO", &slow, &PyDict_Type, &opened, &retention, &types)) return NULL;
    Function *made = new_function(&FunctionType, fetch_call, slow);
    if (made == NULL) return NULL;
    set_part(made, OPENED, opened);
    set_part(made, RETENTION, retention);
    if (type_bits(types, &made->key_types) < 0) Py_CLEAR(made);
    return (PyObject *)made;
}

/* Put a value into an open window that has the key. 1 if it did, 0 if `slow` has to, -1 with an error. */
static int put_into(Function *self, PyObject *window, PyObject *key, PyObject *value, long long start) {
    PyObject *retention = self->parts[RETENTION], *pending = NULL;
    long long kept_after = number_of(retention, name_kept_after), newest = number_of(retention, name_newest);
    if (PyErr_Occurred()) return -1;
    if (start <= kept_after || start > newest) return 0;
    int done = has_entry(window, key, &pending);
    if (done > 0 && PyDict_GET_SIZE(pending) == 0 && PyList_Append(self->parts[CHANGED], window) < 0) done = -1;
    if (done > 0 && PyDict_SetItem(pending, key, value) < 0) done = -1;
    Py_XDECREF(pending);
    return done;
}

/* put_window(slow, opened, changed, retention, key_types, fit): see `put`; (key, value, start of the window). */
static PyObject *put_window_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (is_plain_call(nargsf, names, 3) && is_timestamp(args[2]) && is_key(self, args[0]) &&
        may_wait(self, self->parts[WINDOW_TYPES], self->parts[WINDOW_STAMP], args[1])) {
        PyObject *window = PyDict_GetItemWithError(self->parts[OPENED], args[2]);
        if (window == NULL && PyErr_Occurred()) return NULL;
        if (window != NULL) {
            Py_INCREF(window);
            int done = put_into(self, window, args[0], args[1], PyLong_AsLongLong(args[2]));
            Py_DECREF(window);
            if (done < 0) return NULL;
            if (done) {
                self->count++;
                Py_RETURN_NONE;
            }
        }
    }
    return call_slow(self, args, nargsf, names);
}

static PyObject *put_window(PyObject *module, PyObject *args) {
    PyObject *slow, *opened, *changed, *retention, *types, *fit;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!O!OOO!", &slow, &PyDict_Type, &opened, &PyList_Type, &changed, &retention, &types,
                          &PyTuple_Type, &fit))
        return NULL;
    Function *made = new_function(&FunctionType, put_window_call, slow);
    if (made == NULL) return NULL;
    set_part(made, OPENED, opened);
    set_part(made, RETENTION, retention);
    set_part(made, CHANGED, changed);
    if (type_bits(types, &made->key_types) < 0 || take_fit(made, WINDOW_TYPES, WINDOW_STAMP, fit) < 0) Py_CLEAR(made);
    return (PyObject *)made;
}

/* ------------------------------------------------------------------ window stores that retain duplicates */

enum { KNOWN, OF_RETENTION, ROW_TYPES, ROW_STAMP, WAITING, SCAN, ENCODED };

/* Return the first index in `times` of a time that is not below one (`after`: that is above it). -1 with an error. */
static Py_ssize_t bisect(PyObject *times, long long time, int after) {
    Py_ssize_t low = 0, high = PyList_GET_SIZE(times);
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        long long found = as_number(PyList_GET_ITEM(times, middle));
        if (found == -1 && PyErr_Occurred()) return -1;
        if (found < time || (after && found == time)) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Return a list that an object has as an attribute, NULL without an error if that is no list. New reference. */
static PyObject *list_of(PyObject *object, PyObject *name) {
    PyObject *found = PyObject_GetAttr(object, name);
    if (found != NULL && !PyList_CheckExact(found)) Py_CLEAR(found);
    return found;
}

/* Return (time, value) for rows of a key, as a scan; NULL without an error where `slow` has to look. */
static PyObject *scan_rows(Function *self, PyObject *rows, long long first_time, long long last_time) {
    PyObject *times = list_of(rows, name_times), *values = times == NULL ? NULL : list_of(rows, name_values), *found = NULL;
    if (values == NULL || PyList_GET_SIZE(values) != PyList_GET_SIZE(times)) goto done;
    Py_ssize_t first = bisect(times, first_time, 0), end = first < 0 ? -1 : bisect(times, last_time, 1);
    if (end < 0) goto done;
    PyObject *entries = PyList_New(end > first ? end - first : 0);
    for (Py_ssize_t at = first; entries != NULL && at < end; at++) {
        PyObject *value = PyList_GET_ITEM(values, at);
        int is_encoded = (PyObject *)Py_TYPE(value) == self->parts[ENCODED];
        PyObject *entry = is_encoded ? NULL : PyTuple_Pack(2, PyList_GET_ITEM(times, at), value);
        if (entry == NULL) Py_CLEAR(entries);
        else PyList_SET_ITEM(entries, at - first, entry);
    }
    if (entries != NULL) found = PyObject_CallOneArg(self->parts[SCAN], entries);
    Py_XDECREF(entries);
done:
    Py_XDECREF(times);
    Py_XDECREF(values);
    return found;
}

/* fetch_rows(slow, known, retention, key_types, scan type, Encoded): rows of a key that are kept as objects. */
static PyObject *fetch_rows_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (is_plain_call(nargsf, names, 3) && is_timestamp(args[1]) && is_timestamp(args[2]) && is_key(self, args[0])) {
        PyObject *rows = PyDict_GetItemWithError(self->parts[KNOWN], args[0]);
        if (rows != NULL) {
            long long first = PyLong_AsLongLong(args[1]), kept_after = number_of(self->parts[OF_RETENTION], name_kept_after);
            if (kept_after == -1 && PyErr_Occurred()) return NULL;
            Py_INCREF(rows);
            PyObject *found = scan_rows(self, rows, first > kept_after ? first : kept_after + 1, PyLong_AsLongLong(args[2]));
            Py_DECREF(rows);
            if (found != NULL) {
                self->count++;
                return found;
            }
        }
        if (PyErr_Occurred()) return NULL;
    }
    return call_slow(self, args, nargsf, names);
}

static PyObject *fetch_rows(PyObject *module, PyObject *args) {
    PyObject *slow, *known, *retention, *types, *scan, *encoded;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!OOOO", &slow, &PyDict_Type, &known, &retention, &types, &scan, &encoded)) return NULL;
    Function *made = new_function(&FunctionType, fetch_rows_call, slow);
    if (made == NULL) return NULL;
    set_part(made, KNOWN, known);
    set_part(made, OF_RETENTION, retention);
    set_part(made, SCAN, scan);
    set_part(made, ENCODED, encoded);
    if (type_bits(types, &made->key_types) < 0) Py_CLEAR(made);
    return (PyObject *)made;
}

/* Add a row behind those of its key. 1 if it did, 0 if `slow` has to, -1 with an error. */
static int add_row(Function *self, PyObject *rows, PyObject *const *args) {
    PyObject *retention = self->parts[OF_RETENTION], *times = list_of(rows, name_times), *values = NULL, *number = NULL;
    PyObject *waiting = NULL, *noted = NULL;
    int done = 0;
    if (times != NULL) values = list_of(rows, name_values);
    if (values == NULL) goto done;
    Py_ssize_t size = PyList_GET_SIZE(times);
    long long time = PyLong_AsLongLong(args[2]), last = size ? as_number(PyList_GET_ITEM(times, size - 1)) : -1;
    long long kept_after = number_of(retention, name_kept_after), newest = number_of(retention, name_newest);
    long long before = number_of(retention, name_number);
    /* `KnownRows.add` drops what has expired each time it has `self->most` more rows. */
    if (PyErr_Occurred() || time < last || time <= kept_after || (size + 1) % self->most == 0) goto done;
    number = PyLong_FromLongLong((before + 1) & 0x7FFFFFFF);
    if (number != NULL) waiting = PyTuple_Pack(4, args[0], args[2], number, args[1]);
    done = -1;
    if (waiting == NULL || PyObject_SetAttr(retention, name_has_changed, Py_True) < 0 ||
        PyObject_SetAttr(retention, name_number, number) < 0 || PyList_Append(times, args[2]) < 0 ||
        PyList_Append(values, args[1]) < 0 || PyList_Append(self->parts[WAITING], waiting) < 0)
        goto done;
    if (time > newest) noted = PyObject_CallMethodOneArg(retention, name_note, args[2]);
    if (time <= newest || noted != NULL) done = 1;
done:
    Py_XDECREF(noted);
    Py_XDECREF(times);
    Py_XDECREF(values);
    Py_XDECREF(number);
    Py_XDECREF(waiting);
    return PyErr_Occurred() ? -1 : done;
}

/* add(slow, known, pending, retention, key_types, fit, pruned_every): a further row (key, value, start of the window). */
static PyObject *add_call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)self_;
    if (is_plain_call(nargsf, names, 3) && is_timestamp(args[2]) && is_key(self, args[0]) &&
        may_wait(self, self->parts[ROW_TYPES], self->parts[ROW_STAMP], args[1])) {
        PyObject *rows = PyDict_GetItemWithError(self->parts[KNOWN], args[0]);
        if (rows == NULL && PyErr_Occurred()) return NULL;
        if (rows != NULL) {
            Py_INCREF(rows);
            int done = add_row(self, rows, args);
            Py_DECREF(rows);
            if (done < 0) return NULL;
            if (done) {
                self->count++;
                Py_RETURN_NONE;
            }
        }
    }
    return call_slow(self, args, nargsf, names);
}

static PyObject *add(PyObject *module, PyObject *args) {
    PyObject *slow, *known, *pending, *retention, *types, *fit;
    Py_ssize_t pruned_every;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!O!OOO!n", &slow, &PyDict_Type, &known, &PyList_Type, &pending, &retention, &types,
                          &PyTuple_Type, &fit, &pruned_every))
        return NULL;
    Function *made = new_function(&FunctionType, add_call, slow);
    if (made == NULL) return NULL;
    set_part(made, KNOWN, known);
    set_part(made, OF_RETENTION, retention);
    set_part(made, WAITING, pending);
    made->most = pruned_every > 0 ? pruned_every : 1;
    if (type_bits(types, &made->key_types) < 0 || take_fit(made, ROW_TYPES, ROW_STAMP, fit) < 0) Py_CLEAR(made);
    return (PyObject *)made;
}

/* ------------------------------------------------------------------ the module */

static PyMethodDef functions[] = {
    {"rows", rows, METH_VARARGS, NULL},
    {"texts", texts, METH_O, NULL},
    {"with_part", with_part, METH_VARARGS, NULL},
    {"run_records", run_records, METH_VARARGS, NULL},
    {"forward", forward, METH_VARARGS, NULL},
    {"transformer", transformer, METH_VARARGS, NULL},
    {"noting", noting, METH_VARARGS, NULL},
    {"write", write_, METH_VARARGS, NULL},
    {"int64", int64, METH_O, NULL},
    {"around", around, METH_VARARGS, NULL},
    {"encode", encode, METH_VARARGS, NULL},
    {"read_through", read_through, METH_VARARGS, NULL},
    {"get", get, METH_VARARGS, NULL},
    {"put", put, METH_VARARGS, NULL},
    {"fetch", fetch, METH_VARARGS, NULL},
    {"put_window", put_window, METH_VARARGS, NULL},
    {"fetch_rows", fetch_rows, METH_VARARGS, NULL},
    {"add", add, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&name_get, "get"},         {&name_read, "_read"},     {&name_pending, "pending"}, {&name_clean, "clean"},
        {&name_newest, "newest"},   {&name_times, "times"},    {&name_values, "values"},   {&name_number, "number"},
        {&name_kept_after, "kept_after"}, {&name_has_changed, "_has_changed"},
        {&name_note, "note"},       {&name_decode, "decode"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if ((*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) return -1;
    str_encode = PyObject_GetAttrString((PyObject *)&PyUnicode_Type, "encode");
    bytes_bytes = PyObject_GetAttrString((PyObject *)&PyBytes_Type, "__bytes__");
    if (str_encode == NULL || bytes_bytes == NULL) return -1;
    if (PyType_Ready(&FunctionType) < 0 || PyType_Ready(&MethodType) < 0) return -1;
    return PyModule_AddIntConstant(module, "REVISION", REVISION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_records", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit__records(void) {
    return PyModuleDef_Init(&definition);
}
