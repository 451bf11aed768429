/* builder.h: a trace while it is read. Readers add sessions, agents, requests, numbers and strings
 * in the order of the file; builder_finish sorts the requests under their sessions and turns
 * positions into pointers. Inside of the trace room. */
#ifndef WEIR_TRACE_BUILDER_H
#define WEIR_TRACE_BUILDER_H

#include "model/json_fields.h"
#include "trace/trace.h"

/* Where a request's numbers and strings begin in ids and chars; the arrays move as they grow. */
struct builder_place {
    size_t ids, text, role, system, answer;
};
enum { PLACE_NONE = 0 }; /* chars starts with an empty string, so 0 is nobody's text */

struct builder_names {
    size_t id, type;
};

struct builder {
    struct trace t;
    struct builder_place *places;        /* of each request */
    struct builder_names *agent_names;   /* of each agent */
    struct builder_names *session_names; /* of each session; id only */
    size_t request_room, agent_room, session_room;
    size_t n_ids, ids_room, n_chars, chars_room;
    uint64_t sum_in, sum_out; /* tokens of all calls so far */
    size_t ids_begin, ids_n;  /* the run of numbers added last */
    json_t *by_id;            /* sessions of this file by id */
    uint32_t file_space;      /* name space shared by the file, UINT32_MAX: none yet */
    uint32_t n_spaces;
    uint32_t block_tokens;
    int64_t zero_ticks; /* azure: time of the first row */
    bool has_header;    /* azure */
    int64_t newest;     /* azure, mooncake: latest time of the file so far */

    /* Where the reader stands, for messages. */
    const char *file;
    uint64_t line;
    char where[sizeof((weir_error *)0)->where];
    weir_error *err;
};

void builder_open(struct builder *b, enum trace_format format, const struct trace_options *options,
                  weir_error *err);
/* The next file: ids of sessions start anew. */
weir_status builder_file(struct builder *b, const char *file);
/* The next line of it; b->where is its place from now on. */
void builder_line(struct builder *b, uint64_t line);
/* WEIR_BAD_FILE at the place of now. */
weir_status builder_refuse(struct builder *b, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void builder_warn(struct builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Warns of a time before that of a row or line above. */
void builder_order(struct builder *b, const char *field, int64_t t);
weir_status builder_no_memory(struct builder *b);

/* A new session; `id` must be new to the file. *out is valid until the next session. */
weir_status builder_session(struct builder *b, const char *id, struct trace_session **out);
/* The session `id` of this file, made where it is not there. */
weir_status builder_turn_session(struct builder *b, const char *id, struct trace_session **out);
/* A new session whose id may have stood before. */
weir_status builder_loose_session(struct builder *b, const char *id, struct trace_session **out);
/* A fresh name space, or the one of the file. */
uint32_t builder_space(struct builder *b, bool of_file);
weir_status builder_agent(struct builder *b, const char *id, const char *type,
                          const struct trace_agent *agent);
/* Adds a request with its numbers and texts. */
struct builder_extra {
    const uint64_t *ids;                /* r->n_blocks of them */
    const json_t *texts;                /* string, array of strings or NULL */
    const char *role, *system, *answer; /* NULL: none */
};
weir_status builder_request(struct builder *b, const struct trace_request *r,
                            const struct builder_extra *extra);

/* Fields of an object at the place of now. `scope` lives as long as the fields are used. */
struct json_fields builder_fields(struct builder *b, const json_t *object, const char *scope);
/* A count of tokens or blocks: 0 (or `low`) to 2^53. */
uint64_t builder_count(struct json_fields *f, const char *name, bool required, uint64_t low);
/* A time of `unit_ns` ns a unit; TRACE_ABSENT where absent and not required. */
int64_t builder_time(struct json_fields *f, const char *name, bool required, double unit_ns);
/* The numbers of the array `name` in a new array (free()), NULL where absent or empty. */
uint64_t *builder_numbers(struct json_fields *f, const char *name, bool required, size_t *n);

/* The rest of the stream behind the `used` bytes of *text, which may be NULL (with *room 0) and
 * grows; freed by the caller. A NUL stands behind the *bytes. */
weir_status builder_slurp(struct builder *b, FILE *in, char **text, size_t *room, size_t used,
                          size_t *bytes);
/* WEIR_BAD_FILE or WEIR_NO_MEMORY for text that is no JSON object, at b's place. */
weir_status builder_json_fault(struct builder *b, const json_error_t *fault);

/* Moves the finished trace to *out, or frees everything where status says so. */
weir_status builder_finish(struct builder *b, weir_status status, struct trace *out);

/* The readers: one line, or one JSON object of it, at a time. */
weir_status read_weka_object(struct builder *b, const json_t *object);
weir_status read_mooncake_object(struct builder *b, const json_t *object);
weir_status read_single_turn_object(struct builder *b, const json_t *object);
weir_status read_multi_turn_object(struct builder *b, const json_t *object);
/* All of a stream: an array of conversations. */
weir_status read_sharegpt(struct builder *b, FILE *in);
weir_status read_azure_line(struct builder *b, const char *line, size_t bytes);

#endif
