/* body.h: request bodies: which fields a server understands, and the prompt as token ids or as
 * messages. Constant while a replay runs, so that a second thread may compose. */
#ifndef WEIR_BENCH_BODY_H
#define WEIR_BENCH_BODY_H

#include "bench/talk.h"
#include "bench/words.h"
#include "trace/schedule.h"

#include <jansson.h>

enum server_kind {
    SERVER_AUTO, /* look */
    SERVER_WEIR,
    SERVER_VLLM,
    SERVER_SGLANG,
    SERVER_LLAMA_CPP,
    SERVER_OPENAI, /* any other: only what the API itself has */
    SERVER_KINDS,
};
const char *server_kind_name(enum server_kind k);

enum endpoint { ENDPOINT_COMPLETIONS, ENDPOINT_CHAT };

struct body_maker {
    const struct trace *trace;
    enum server_kind server;
    enum endpoint endpoint;
    const char *model;
    const json_t *extra; /* object or NULL: fields that are added, or replace ours */
    int32_t low, high;   /* completions: range of token ids */
    struct words words;  /* chat: what ids stand for */
    uint64_t max_tokens; /* for requests without a recorded length; 0: the server's limit */
    uint64_t seed;
    double length_scale;   /* of prompts and answers of lengths */
    bool recorded_answers; /* history holds what was recorded, not what was answered */
};

struct body {
    char *bytes; /* NULL: no memory */
    size_t n;
};
/* Composes the body of a call. `talk`: of its play, for texts with history; else NULL. */
void body_make(const struct body_maker *m, const struct call *call, const struct talk *talk,
               struct body *out);
const char *endpoint_path(enum endpoint e);
/* The length asked for, 0: none. */
uint64_t body_out_tokens(const struct body_maker *m, const struct call *call);
/* Is it one prompt with the turns before it in front? */
bool body_has_history(const struct trace *t);

#endif
