/* answer.h: what a server says to one call: a stream of completion or chat chunks, a plain JSON
 * answer, or an error, told apart by what is in them. Knows no sockets and no clock: the caller
 * stamps what it feeds. Stands everything that servers of this API are known to send, and counts
 * what cannot be true. */
#ifndef WEIR_BENCH_ANSWER_H
#define WEIR_BENCH_ANSWER_H

#include "bench/events.h"
#include "text/tokenizer.h"

struct answer {
    bool keep_text; /* set by the caller: gather what the model wrote */

    struct text content; /* with keep_text: what later turns contain */
    struct text all;     /* and with reasoning and calls, as a tokenizer would count it */
    char id[64];         /* of the first object that has one */
    char finish_reason[24];
    bool is_stream;   /* events have come; else one JSON object */
    bool is_finished; /* a finish_reason has come */
    bool is_done;     /* the end mark has come */
    bool id_changed;  /* objects of one answer had different ids */
    uint32_t n_chunks;
    uint64_t n_token_ids; /* where the server sends the ids themselves; else 0 */
    bool has_usage, has_cached, has_prompt;
    uint32_t odd_counts; /* fields of usage that are no count */
    uint64_t prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens;

    bool failed; /* with the first reason: */
    int error_code;
    char error_type[32]; /* "server": it said so; "protocol": it cannot be understood */
    char error_message[160];

    struct events events;
    char *body; /* an answer that is no stream */
    size_t n_body, body_room;
    char first;     /* byte that is no white space; 0: none yet */
    bool is_ending; /* what is torn now was cut off by the end */
};

/* Zero-initialised is ready; free and ready again. */
void answer_free(struct answer *a);
/* Takes bytes of the answer's body; *chunks says how many chunks with something in them ended in
 * these. `status` is that of HTTP: what is not 200 is an error and is kept for its message. */
void answer_feed(struct answer *a, int status, const char *bytes, size_t n, uint32_t *chunks);
/* The body is over, whole or torn. */
void answer_end(struct answer *a, int status, uint32_t *chunks);

#endif
