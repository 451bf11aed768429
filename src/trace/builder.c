/* builder.c: grows the arrays of a trace, keeps the reader's place for messages, and puts the
 * finished trace together. Called by read.c and the readers.
 * Invariant that bites: everything is a position until builder_finish, because the arrays move. */
#include "trace/builder.h"

#include <stdarg.h>
#include <string.h>

/* 2^53: beyond it JSON's readers disagree on integers. */
#define COUNT_MAX (INT64_C(1) << 53)
#define SUM_MAX   (UINT64_C(1) << 62)
/* Some 190 years: a time in ns fits 64 bits with room to add. */
#define TIME_MAX_S 6e9

/* ----------------------------------------------------------------------------------- place, faults
 */

void builder_open(struct builder *b, enum trace_format format, const struct trace_options *options,
                  weir_error *err) {
    *b = (struct builder){.t.format = format,
                          .block_tokens =
                              options && options->block_tokens ? options->block_tokens : 512,
                          .err = err,
                          .zero_ticks = -1};
}

weir_status builder_file(struct builder *b, const char *file) {
    json_decref(b->by_id);
    b->by_id = json_object();
    b->file = file;
    b->file_space = UINT32_MAX;
    b->newest = 0;
    snprintf(b->where, sizeof b->where, "%s", file);
    return b->by_id ? WEIR_OK : builder_no_memory(b);
}

/* A long path keeps its end: the file's name and the line are what is looked for. */
void builder_line(struct builder *b, uint64_t line) {
    char number[24];
    int n = snprintf(number, sizeof number, ":%" PRIu64, line);
    size_t room = sizeof b->where - 1 - (size_t)n, length = strlen(b->file);
    b->line = line;
    snprintf(b->where, sizeof b->where, "%s%s", b->file + (length > room ? length - room : 0),
             number);
}

weir_status builder_refuse(struct builder *b, const char *format, ...) {
    char text[sizeof b->err->message];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return weir_fail(b->err, WEIR_BAD_FILE, b->where, "%s", text);
}

void builder_warn(struct builder *b, const char *format, ...) {
    if (b->t.n_warnings++)
        return;
    int n = snprintf(b->t.warning, sizeof b->t.warning, "%s: ", b->where);
    va_list ap;
    va_start(ap, format);
    vsnprintf(b->t.warning + n, sizeof b->t.warning - (size_t)n, format, ap);
    va_end(ap);
}

void builder_order(struct builder *b, const char *field, int64_t t) {
    if (t < b->newest)
        builder_warn(b,
                     "field %s: lies %.3f s before a line above; calls are played in the order "
                     "of time",
                     field, (double)(b->newest - t) / 1e9);
    else
        b->newest = t;
}

weir_status builder_no_memory(struct builder *b) {
    return weir_fail(b->err, WEIR_NO_MEMORY, b->where, "no memory for the trace");
}

/* -------------------------------------------------------------------------------------- growing */

/* Room for `more` behind the n in use; false without memory. */
static bool make_room(void *array, size_t *room, size_t n, size_t more, size_t each) {
    if (more <= *room - n)
        return true;
    size_t want = *room ? *room : 64;
    while (want - n < more)
        if (__builtin_mul_overflow(want, (size_t)2, &want))
            return false;
    size_t bytes;
    void *old, *p;
    memcpy(&old, array, sizeof old);
    if (__builtin_mul_overflow(want, each, &bytes) || !(p = realloc(old, bytes)))
        return false;
    memcpy(array, &p, sizeof p);
    *room = want;
    return true;
}

static bool add_string(struct builder *b, const char *s, size_t *at) {
    size_t bytes = s ? strlen(s) + 1 : 0;
    if (!b->n_chars) { /* the empty string of PLACE_NONE */
        if (!make_room(&b->t.chars, &b->chars_room, 0, 1, 1))
            return false;
        b->t.chars[b->n_chars++] = 0;
    }
    *at = PLACE_NONE;
    if (!s)
        return true;
    if (!make_room(&b->t.chars, &b->chars_room, b->n_chars, bytes, 1))
        return false;
    memcpy(b->t.chars + b->n_chars, s, bytes);
    *at = b->n_chars;
    b->n_chars += bytes;
    return true;
}

/* A turn usually repeats the blocks of the one before and adds its own: where it does, it shares
 * their place, so that a session takes memory by its length and not by its square. */
static bool add_ids(struct builder *b, const uint64_t *ids, size_t n, size_t *at) {
    bool last = b->ids_begin + b->ids_n == b->n_ids;
    size_t same = last && n >= b->ids_n ? b->ids_n : 0;
    if (same && memcmp(b->t.ids + b->ids_begin, ids, same * sizeof *ids))
        same = 0;
    if (n > same) {
        if (!make_room(&b->t.ids, &b->ids_room, b->n_ids, n - same, sizeof *ids))
            return false;
        memcpy(b->t.ids + b->n_ids, ids + same, (n - same) * sizeof *ids);
    }
    *at = same ? b->ids_begin : b->n_ids;
    b->n_ids += n - same;
    b->ids_begin = *at;
    b->ids_n = n;
    return true;
}

/* Grows an array of the trace and the array of positions that goes with it. */
static bool make_pair(void *a, size_t a_each, void *z, size_t z_each, size_t *room, size_t n) {
    size_t r = *room;
    return n < UINT32_MAX - 1 && make_room(a, &r, n, 1, a_each) && make_room(z, room, n, 1, z_each);
}

weir_status builder_loose_session(struct builder *b, const char *id, struct trace_session **out) {
    struct trace *t = &b->t;
    size_t at;
    if (!make_pair(&t->sessions, sizeof *t->sessions, &b->session_names, sizeof *b->session_names,
                   &b->session_room, t->n_sessions) ||
        !add_string(b, id, &at))
        return builder_no_memory(b);
    b->session_names[t->n_sessions] = (struct builder_names){.id = at};
    *out = &t->sessions[t->n_sessions++];
    **out = (struct trace_session){.first_agent = t->n_agents};
    return WEIR_OK;
}

weir_status builder_session(struct builder *b, const char *id, struct trace_session **out) {
    if (json_object_get(b->by_id, id))
        return builder_refuse(b, "field %s: \"%.200s\" stood in this file before",
                              b->t.format == TRACE_WEKA ? "id" : "session_id", id);
    if (json_object_set_new(b->by_id, id, json_integer(b->t.n_sessions)))
        return builder_no_memory(b);
    return builder_loose_session(b, id, out);
}

weir_status builder_turn_session(struct builder *b, const char *id, struct trace_session **out) {
    if (!id) {
        char name[32];
        snprintf(name, sizeof name, "line %" PRIu64, b->line);
        return builder_loose_session(b, name, out);
    }
    const json_t *known = json_object_get(b->by_id, id);
    if (!known)
        return builder_session(b, id, out);
    *out = &b->t.sessions[json_integer_value(known)];
    return WEIR_OK;
}

uint32_t builder_space(struct builder *b, bool of_file) {
    if (!of_file)
        return b->n_spaces++;
    if (b->file_space == UINT32_MAX)
        b->file_space = b->n_spaces++;
    return b->file_space;
}

weir_status builder_agent(struct builder *b, const char *id, const char *type,
                          const struct trace_agent *agent) {
    struct trace *t = &b->t;
    struct builder_names names;
    if (!make_pair(&t->agents, sizeof *t->agents, &b->agent_names, sizeof *b->agent_names,
                   &b->agent_room, t->n_agents) ||
        !add_string(b, id, &names.id) || !add_string(b, type, &names.type))
        return builder_no_memory(b);
    b->agent_names[t->n_agents] = names;
    t->agents[t->n_agents++] = *agent;
    t->sessions[agent->session].n_agents++;
    return WEIR_OK;
}

/* One string, or several behind one another. */
static bool add_texts(struct builder *b, const json_t *texts, size_t *at) {
    if (!json_is_array(texts))
        return add_string(b, json_string_value(texts), at);
    size_t next;
    for (size_t i = 0; i < json_array_size(texts); i++)
        if (!add_string(b, json_string_value(json_array_get(texts, i)), i ? &next : at))
            return false;
    return true;
}

weir_status builder_request(struct builder *b, const struct trace_request *r,
                            const struct builder_extra *extra) {
    struct trace *t = &b->t;
    struct builder_place place = {0};
    /* Counts of one call are at most 2^53, so that neither sum can wrap before it is looked at. */
    b->sum_in += r->in;
    b->sum_out += r->has_out ? r->out : 0;
    if (b->sum_in > SUM_MAX || b->sum_out > SUM_MAX)
        return builder_refuse(b, "the tokens of all calls up to here add up to more than 2^62");
    if (!make_pair(&t->requests, sizeof *t->requests, &b->places, sizeof *b->places,
                   &b->request_room, t->n_requests) ||
        (r->n_blocks && !add_ids(b, extra->ids, r->n_blocks, &place.ids)) ||
        !add_texts(b, extra->texts, &place.text) || !add_string(b, extra->role, &place.role) ||
        !add_string(b, extra->system, &place.system) ||
        !add_string(b, extra->answer, &place.answer))
        return builder_no_memory(b);
    b->places[t->n_requests] = place;
    t->requests[t->n_requests] = *r;
    t->requests[t->n_requests].number = t->n_requests;
    t->n_requests++;
    struct trace_session *s = &t->sessions[r->session];
    s->n_requests++;
    if (r->agent < 0)
        s->n_own++;
    else
        t->agents[r->agent].n_requests++;
    return WEIR_OK;
}

/* --------------------------------------------------------------------------------------- fields */

struct json_fields builder_fields(struct builder *b, const json_t *object, const char *scope) {
    return (struct json_fields){
        .first = object, .scope = scope, .path = b->where, .err = b->err, .status = WEIR_OK};
}

uint64_t builder_count(struct json_fields *f, const char *name, bool required, uint64_t low) {
    return (uint64_t)json_field_integer(f, name, required, 0, (int64_t)low, COUNT_MAX);
}

int64_t builder_time(struct json_fields *f, const char *name, bool required, double unit_ns) {
    double limit = TIME_MAX_S * 1e9 / unit_ns;
    double x = json_field_number(f, name, required, -1, 0, limit);
    return x < 0 ? TRACE_ABSENT : (int64_t)(x * unit_ns + 0.5);
}

uint64_t *builder_numbers(struct json_fields *f, const char *name, bool required, size_t *n) {
    *n = 0;
    const json_t *v = f->status ? NULL : json_field(f, name);
    if (f->status)
        return NULL;
    if (!v && !required)
        return NULL;
    if (!v || !json_is_array(v)) {
        json_field_refuse(f, name, v, WEIR_BAD_FILE,
                          v ? "must be an array of integers" : "is missing");
        return NULL;
    }
    size_t count = json_array_size(v);
    if (count == 0)
        return NULL;
    if (count > UINT32_MAX) {
        json_field_refuse(f, name, NULL, WEIR_BAD_FILE, "has %zu entries, too many", count);
        return NULL;
    }
    uint64_t *out = malloc(count * sizeof *out);
    if (!out) {
        json_field_refuse(f, name, NULL, WEIR_NO_MEMORY, "no memory for %zu numbers", count);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(v, i);
        json_int_t x = json_integer_value(id);
        if (!json_is_integer(id) || x < 0 || x > COUNT_MAX) {
            char entry[64];
            snprintf(entry, sizeof entry, "%.40s[%zu]", name, i);
            json_field_refuse(f, entry, id, WEIR_BAD_FILE, "must be an integer from 0 to %" PRId64,
                              COUNT_MAX);
            free(out);
            return NULL;
        }
        out[i] = (uint64_t)x;
    }
    *n = count;
    return out;
}

/* ------------------------------------------------------------------------------------ finishing */

/* By session, the own chain before the agents, else as in the file. */
static int under_sessions(const void *a, const void *z) {
    const struct trace_request *x = a, *y = z;
    if (x->session != y->session)
        return x->session < y->session ? -1 : 1;
    if (x->agent != y->agent)
        return x->agent < y->agent ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void count_firsts(struct trace *t) {
    uint32_t at = 0;
    for (uint32_t s = 0; s < t->n_sessions; s++) {
        t->sessions[s].first = at;
        at += t->sessions[s].n_requests;
    }
    for (uint32_t a = 0; a < t->n_agents; a++) {
        const struct trace_session *s = &t->sessions[t->agents[a].session];
        t->agents[a].first = a == s->first_agent
                                 ? s->first + s->n_own
                                 : t->agents[a - 1].first + t->agents[a - 1].n_requests;
    }
}

static void place_all(struct builder *b) {
    struct trace *t = &b->t;
    for (uint32_t i = 0; i < t->n_requests; i++) {
        struct trace_request *r = &t->requests[i];
        const struct builder_place *p = &b->places[i];
        r->hash_ids = r->n_blocks ? t->ids + p->ids : NULL;
        r->text = r->n_texts ? t->chars + p->text : NULL;
        r->role = p->role ? t->chars + p->role : NULL;
        r->system = p->system ? t->chars + p->system : NULL;
        r->answer = p->answer ? t->chars + p->answer : NULL;
    }
    for (uint32_t i = 0; i < t->n_sessions; i++)
        t->sessions[i].id = t->chars + b->session_names[i].id;
    for (uint32_t i = 0; i < t->n_agents; i++) {
        t->agents[i].id = t->chars + b->agent_names[i].id;
        t->agents[i].type = t->chars + b->agent_names[i].type;
    }
    if (t->n_requests)
        qsort(t->requests, t->n_requests, sizeof *t->requests, under_sessions);
    count_firsts(t);
}

weir_status builder_finish(struct builder *b, weir_status status, struct trace *out) {
    if (!status)
        place_all(b);
    json_decref(b->by_id);
    free(b->places);
    free(b->agent_names);
    free(b->session_names);
    if (status)
        trace_free(&b->t);
    *out = b->t;
    return status;
}

const struct trace_request *trace_first_turn(const struct trace *t, const struct trace_request *r) {
    return t->requests + (r->agent < 0 ? t->sessions[r->session].first : t->agents[r->agent].first);
}

void trace_free(struct trace *t) {
    free(t->requests);
    free(t->agents);
    free(t->sessions);
    free(t->ids);
    free(t->chars);
    *t = (struct trace){0};
}
