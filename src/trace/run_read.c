/* run_read.c: reads the directory of a run back. Called by reports, comparisons and the frontier.
 * Only the records are required: directories that other tools wrote hold neither run.json nor
 * timeline.jsonl. */
#include "trace/run_inside.h"

#include "base/file.h"
#include "base/plural.h"
#include "model/json_fields.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { LIMIT = 64 << 20 }; /* of run.json */

/* Texts of conversations, each once; a position until all are there, since the memory moves. */
struct names {
    char *text;
    size_t n, room;
    json_t *at; /* name to position */
};

static bool keep_name(struct names *l, const char *name, size_t *out) {
    const json_t *known = json_object_get(l->at, name);
    if (known) {
        *out = (size_t)json_integer_value(known);
        return true;
    }
    size_t bytes = strlen(name) + 1;
    if (l->n + bytes > l->room) {
        size_t room = 2 * l->room + bytes + 256;
        char *more = realloc(l->text, room);
        if (!more)
            return false;
        l->text = more;
        l->room = room;
    }
    memcpy(l->text + l->n, name, bytes);
    *out = l->n;
    l->n += bytes;
    return !json_object_set_new(l->at, name, json_integer((json_int_t)*out));
}

/* Calls `take` with each line's object. */
struct lines {
    const char *path;
    char place[sizeof((weir_error *)0)->where];
    weir_error *err;
};

static weir_status each_line(struct lines *l,
                             weir_status (*take)(void *arg, const json_t *object, struct lines *l),
                             void *arg) {
    FILE *in = fopen(l->path, "re");
    if (!in)
        return weir_fail(l->err, WEIR_BAD_FILE, l->path, "cannot be read: %s", strerror(errno));
    char *line = NULL;
    size_t room = 0;
    weir_status s = WEIR_OK;
    uint64_t number = 0;
    ssize_t n;
    while (!s && (n = getline(&line, &room, in)) >= 0) {
        snprintf(l->place, sizeof l->place, "%.*s:%" PRIu64, (int)sizeof l->place - 24, l->path,
                 ++number);
        if (strspn(line, " \t\r\n") == (size_t)n)
            continue;
        json_t *object;
        s = json_text_parse(line, (size_t)n, l->place, &object, l->err);
        if (s)
            break;
        s = json_is_object(object)
                ? take(arg, object, l)
                : weir_fail(l->err, WEIR_BAD_FILE, l->place, "is not a JSON object");
        json_decref(object);
    }
    if (!s && ferror(in))
        s = weir_fail(l->err, WEIR_BAD_FILE, l->path, "cannot be read: %s", strerror(errno));
    free(line);
    fclose(in);
    return s;
}

struct reading {
    struct run *run;
    int64_t told; /* calls, by run.json; -1: it does not say */
    struct names names;
    size_t *name; /* of each record: position + 1, 0: none */
    size_t name_room;
};

/* What lies outside of the run's own time belongs to another run. */
static weir_status check_time(const struct run *r, int64_t at, const char *field,
                              const struct lines *l) {
    if (!at || ((!r->started || at >= r->started) && (!r->ended || at <= r->ended)))
        return WEIR_OK;
    return weir_fail(l->err, WEIR_BAD_FILE, l->place,
                     "field %s: %" PRId64 " does not lie within the run, which by run.json went "
                     "from %" PRId64 " to %" PRId64,
                     field, at, r->started, r->ended);
}

static weir_status take_record(void *arg, const json_t *object, struct lines *l) {
    struct reading *g = arg;
    struct call_record read;
    weir_status s = record_of_json(object, l->place, &read, l->err);
    if (s)
        return s;
    s = check_time(g->run, read.start, "metadata.request_start_ns", l);
    if (!s)
        s = check_time(g->run, read.end, "metadata.request_end_ns", l);
    if (s) {
        call_record_free(&read);
        return s;
    }
    struct call_record *to = run_record(g->run);
    bool ok = to;
    if (ok && g->run->n_records > g->name_room) {
        size_t room = 2 * g->name_room + 64;
        size_t *more = realloc(g->name, room * sizeof *more);
        ok = more;
        if (more) {
            g->name = more;
            g->name_room = room;
        }
    }
    size_t at = 0;
    bool named = read.conversation;
    ok = ok && (!named || keep_name(&g->names, read.conversation, &at));
    read.conversation = NULL;
    if (!ok) {
        call_record_free(&read);
        return weir_fail(l->err, WEIR_NO_MEMORY, l->place, "no memory for its record");
    }
    *to = read;
    g->name[g->run->n_records - 1] = named ? at + 1 : 0;
    return WEIR_OK;
}

static weir_status take_sample(void *arg, const json_t *object, struct lines *l) {
    struct run *r = arg;
    struct json_fields f = {object, NULL, "", l->place, l->err, WEIR_OK};
    if (r->n_samples == r->sample_room) {
        uint32_t room = 2 * r->sample_room + 64;
        struct server_sample *more = realloc(r->samples, room * sizeof *more);
        if (!more)
            return weir_fail(l->err, WEIR_NO_MEMORY, l->place, "no memory for its sample");
        r->samples = more;
        r->sample_room = room;
    }
    struct server_sample *x = &r->samples[r->n_samples];
    size_t n;
    const struct sample_field *field = sample_fields(&n);
    server_sample_clear(x);
    x->at = json_field_integer(&f, "at_ns", true, 0, 0, INT64_C(1) << 62);
    for (size_t i = 0; i < n; i++)
        *sample_number(x, &field[i]) =
            json_field_number(&f, field[i].name, false, NAN, -1e300, 1e300);
    r->n_samples += !f.status;
    return f.status ? f.status : check_time(r, x->at, "at_ns", l);
}

static weir_status read_config(const char *path, struct run *out, int64_t *told, weir_error *err) {
    char *text;
    size_t bytes;
    json_t *object;
    weir_status s = file_read(path, LIMIT, &text, &bytes, err);
    if (s)
        return s;
    s = json_text_parse(text, bytes, path, &object, err);
    free(text);
    if (s)
        return s;
    s = json_is_object(object) ? run_of_json(object, path, out, err)
                               : weir_fail(err, WEIR_BAD_FILE, path, "is not a JSON object");
    if (!s) {
        struct json_fields f = {object, NULL, "", path, err, WEIR_OK};
        struct json_fields calls = f;
        calls.first = json_field_object(&f, "calls", false);
        calls.scope = "calls.";
        calls.status = f.status;
        *told = json_field_integer(&calls, "total", false, -1, 0, UINT32_MAX);
        s = calls.status;
    }
    json_decref(object);
    return s;
}

static weir_status read_all(const char *const path[3], struct reading *g, weir_error *err) {
    struct run *r = g->run;
    struct lines l = {.path = path[1], .err = err};
    g->names.at = json_object();
    if (!g->names.at)
        return weir_fail(err, WEIR_NO_MEMORY, path[1], "no memory to read it");
    weir_status s = WEIR_OK;
    if (access(path[0], F_OK) == 0)
        s = read_config(path[0], r, &g->told, err);
    if (!s)
        s = each_line(&l, take_record, g);
    if (!s && g->told >= 0 && g->told != r->n_records)
        s = weir_fail(err, WEIR_BAD_FILE, path[1],
                      "holds %" PRIu32 " %s and run.json beside it says %" PRId64
                      ": they are not of one run, or one was changed",
                      r->n_records, plural(r->n_records, "call", "calls"), g->told);
    if (!s && access(path[2], F_OK) == 0) {
        l.path = path[2];
        s = each_line(&l, take_sample, r);
    }
    r->strings = g->names.text;
    for (uint32_t i = 0; !s && i < r->n_records; i++)
        if (g->name[i])
            r->records[i].conversation = r->strings + g->name[i] - 1;
    return s;
}

weir_status run_read(const char *dir, struct run *out, weir_error *err) {
    static const char *const file[3] = {"run.json", "profile_export.jsonl", "timeline.jsonl"};
    char *path[3] = {NULL, NULL, NULL};
    *out = (struct run){.subject.allocated_dram_gb = NAN, .overhead.busy = NAN};
    struct reading g = {.run = out, .told = -1};
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        path[i] = file_join(dir, file[i]);
        ok = ok && path[i];
    }
    weir_status s = ok ? read_all((const char *const *)path, &g, err)
                       : weir_fail(err, WEIR_NO_MEMORY, dir, "no memory to read it");
    for (int i = 0; i < 3; i++)
        free(path[i]);
    free(g.name);
    json_decref(g.names.at);
    if (s)
        run_free(out);
    else
        run_clean(out);
    return s;
}
