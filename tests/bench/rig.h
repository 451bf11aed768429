/* rig.h: a mock server beside the test, a replay against it, and what the mock wrote down. */
#ifndef WEIR_TESTS_BENCH_RIG_H
#define WEIR_TESTS_BENCH_RIG_H

#include "tests/test.h"

#include "bench/replay.h"
#include "trace/run.h"

/* One piece of an answer as the mock sent it; times in ns of CLOCK_MONOTONIC. */
struct mock_piece {
    int64_t planned, before, after;
};

/* One request as the mock saw it. */
struct mock_request {
    char lie[24];
    int64_t first_byte;
    struct mock_piece *piece;
    uint32_t n_pieces, room;
    uint64_t *block; /* hashes of each 64 tokens of the prompt */
    uint32_t n_blocks;
};

struct rig {
    pid_t pid;
    char url[64], log[64];
    struct mock_request *request;
    uint32_t n_requests;
    int64_t unix_offset; /* Unix time minus CLOCK_MONOTONIC */

    struct trace trace;
    struct tree tree;
    struct replay_options options; /* url, trace and tree are set; a test sets the rest */
    struct run run;
    struct run_summary summary;
};

/* Starts the mock with these arguments, separated by single spaces; *rig is zeroed first. */
void rig_start(struct rig *rig, const char *arguments);
/* Closed loop over prompts of these lengths. */
void rig_random(struct rig *rig, uint32_t lanes, uint32_t prompts, uint64_t in, uint64_t out,
                double range);
/* Closed loop over a trace of text; AgentX's rules without a limit of warm-up or idle. */
void rig_weka(struct rig *rig, const char *text, uint32_t lanes, double seconds);
/* Runs the replay, sums it up, ends the mock and reads its log. Fails the test where the replay
 * does not even begin. */
void rig_run(struct rig *rig);
/* The request of the log that a record belongs to, by the answer's id; NULL: none. */
const struct mock_request *rig_request(const struct rig *rig, const struct call_record *c);
void rig_free(struct rig *rig);
/* Forgets run and log, for another go with the same options and a fresh mock. */
void rig_again(struct rig *rig, const char *arguments);

#endif
