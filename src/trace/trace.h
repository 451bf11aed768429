/* trace.h: recorded request traces in memory: who asked when, with how many tokens, and which of
 * them had been seen before. Lengths, times and block numbers, no model. Formats: docs of each
 * reader's file. A trace is read once and then constant, so any threads may read it. */
#ifndef WEIR_TRACE_TRACE_H
#define WEIR_TRACE_TRACE_H

#include "base/error.h"

#include <stdio.h>

enum trace_format {
    TRACE_WEKA,        /* agent sessions with sub-agents; JSON, JSONL or a directory of them */
    TRACE_MOONCAKE,    /* single requests or turns of sessions; JSONL */
    TRACE_AZURE,       /* lengths and times alone; CSV */
    TRACE_SINGLE_TURN, /* one prompt a line; JSONL */
    TRACE_MULTI_TURN,  /* one conversation a line; JSONL */
    TRACE_SHAREGPT,    /* conversations with their answers; one JSON array, or JSONL */
    TRACE_FORMATS,
    TRACE_RANDOM = TRACE_FORMATS, /* made by trace_random, not read */
};
const char *trace_format_name(enum trace_format f);
/* WEIR_BAD_VALUE (where "format") names the formats there are. */
weir_status trace_format_parse(const char *name, enum trace_format *out, weir_error *err);

enum { TRACE_ABSENT = -1 }; /* a time that the file does not give */

/* One model call. Times in ns. */
struct trace_request {
    int64_t t;     /* start, from the start of its session (weka) or of the file (others). Where the
                      file gives waits only: their sum so far */
    int64_t delay; /* wait after the turn before was answered; TRACE_ABSENT: starts at t */
    int64_t api_time, think_time, ttft; /* as recorded, or TRACE_ABSENT */
    uint64_t in;                        /* prompt tokens; 0 where the file gives text instead */
    uint64_t out;                       /* answer tokens, with has_out */
    /* One number for each block of the session's block_tokens from the start of the prompt; equal
     * numbers in one name space mean equal blocks behind equal prefixes. The last block may be
     * partial; tokens behind the last block are nobody else's. */
    const uint64_t *hash_ids;
    /* NULL: none. text: n_texts strings, each behind the NUL of the one before; role: who says it,
     * NULL means "user". The prompt of such a request is a chat: see trace_first_turn. */
    const char *text, *role;
    const char *system; /* what a system message ahead of it says */
    const char *answer; /* as recorded */
    uint32_t n_blocks, n_texts;
    uint32_t number;        /* in the order of the file, from 0 */
    uint32_t session;       /* index in sessions */
    int32_t agent;          /* index in agents, -1: the session's own chain */
    bool has_out, streamed; /* streamed: when it was recorded */
};

/* A chain of calls that runs beside its session's. */
struct trace_agent {
    const char *id, *type; /* "" where the file gives none */
    int64_t t;             /* of its entry */
    int64_t duration;      /* recorded, or TRACE_ABSENT */
    uint32_t session;
    uint32_t after; /* calls of the session's own chain that stand before it in the file */
    uint32_t first, n_requests;
    bool relative; /* its calls' times were given from its own t on; here all are absolute */
};

struct trace_session {
    const char *id;
    uint32_t block_tokens;
    uint32_t space;             /* name space of the hash ids; equal: shared with that session */
    uint32_t first, n_requests; /* the own chain's in order of the file, then those of each agent */
    uint32_t n_own;
    uint32_t first_agent, n_agents;
};

struct trace {
    enum trace_format format;
    struct trace_request *requests;
    struct trace_agent *agents;
    struct trace_session *sessions; /* in order of first appearance */
    uint32_t n_requests, n_agents, n_sessions;
    /* Oddities that were accepted: how many, and a sentence on the first; "" without any. */
    uint32_t n_warnings;
    char warning[512];

    uint64_t *ids; /* memory behind hash_ids and strings */
    char *chars;
};

struct trace_options {
    uint32_t block_tokens; /* mooncake: tokens of a block; 0: 512. Other formats: not used */
};

/* Reads a file, with weka also all *.json and *.jsonl of a directory in the order of their names.
 * *out is the caller's, freed with trace_free, and empty on failure. WEIR_BAD_FILE: where = "FILE"
 * or "FILE:LINE", the message names the field, its value and the rule. */
weir_status trace_read(const char *path, enum trace_format format,
                       const struct trace_options *options, struct trace *out, weir_error *err);
/* The same from an open stream; `name` stands for it in messages. */
weir_status trace_read_stream(FILE *in, const char *name, enum trace_format format,
                              const struct trace_options *options, struct trace *out,
                              weir_error *err);
void trace_free(struct trace *t);

/* The first request of the chain of r (its session's own, or its sub-agent's), which stands at or
 * before r in `requests`; those between are the turns before r. Where requests are text, the
 * messages of r's prompt are, for each of them and then for r: the system message if there is one,
 * the text, and (not for r) the answer, recorded or live. */
const struct trace_request *trace_first_turn(const struct trace *t, const struct trace_request *r);

/* Workloads of chosen lengths, as `vllm bench serve --dataset-name random` draws them: a prompt has
 * prefix_len + L tokens with L uniform in [floor(in (1 - range)), ceil(in (1 + range))], an answer
 * those of `out`, at least 1 each. The first prefix_len tokens are those of prefix i mod prefixes
 * for request i, the rest is nobody else's. Each request is a session of its own at time 0. */
struct trace_random {
    uint32_t requests;
    uint64_t in, out;    /* tokens, mean */
    double range;        /* 0 <= range < 1 */
    uint64_t prefix_len; /* tokens, on top of `in`; 0: none */
    uint32_t prefixes;   /* how many different ones; 0 counts as 1 */
    uint64_t seed;
};
/* WEIR_BAD_VALUE names the field; WEIR_NO_MEMORY. */
weir_status trace_random(const struct trace_random *o, struct trace *out, weir_error *err);

/* Indices of all requests by t, equal times in the order of the file; freed with free(). NULL
 * without memory. */
uint32_t *trace_by_time(const struct trace *t);

/* What a cache that never forgets would find: requests of a name space are walked by time; a hit is
 * a leading block whose number was seen in an earlier request. */
struct trace_stats {
    uint64_t requests, agents, agent_requests;
    uint64_t sum_in, sum_out, max_in;
    uint64_t blocks, hits; /* hits: blocks of leading runs */
    uint64_t hit_tokens;   /* sum of min(hits * block_tokens, in) */
};
/* One record for each session in per_session (n_sessions of them, may be NULL) and the sum of all
 * in *total. WEIR_NO_MEMORY. */
weir_status trace_count(const struct trace *t, struct trace_stats *per_session,
                        struct trace_stats *total, weir_error *err);
/* hits / blocks; false, and *out untouched, where there are no blocks. */
bool trace_hit_rate(const struct trace_stats *s, double *out);

/* Prompts for lengths and block numbers. A play is one run through a name space: ids of block b are
 * a function of (play, hash id) alone, those behind the last block of (play, request), so that
 * equal prefixes are equal and two plays share nothing. */
struct trace_play {
    uint64_t key;
    int32_t low, high; /* ids are drawn from [low, high), which keeps them off special ids */
    /* Prompts and answers are so many times as long; 0 means 1. Block k of B tokens fills positions
     * [floor(k B scale), floor((k + 1) B scale)), so that what two prompts share stays shared in
     * proportion. */
    double length_scale;
};
/* Lengths under a scale (0 means 1), at least 1: prompts are rounded down, answers to the nearest.
 */
uint64_t trace_scaled_in(const struct trace_request *r, double scale);
uint64_t trace_scaled_out(const struct trace_request *r, double scale);
/* Key of play `number` of a run that was started with `seed`. */
uint64_t trace_play_key(uint64_t seed, uint64_t number);
/* Writes the ids of positions [from, from + n) of the prompt; from + n is not above
 * trace_scaled_in(r, play->length_scale). */
void trace_prompt_ids(const struct trace *t, const struct trace_request *r,
                      const struct trace_play *play, uint64_t from, uint64_t n, int32_t *out);

#endif
