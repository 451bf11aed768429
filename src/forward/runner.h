/* runner.h: a step program with pools and a team of its own, fed by hand: for scoring, tests and
 * benches, where no scheduler is wanted. Sequence i owns state slot i and its own run of pages. Not
 * for serving: nothing is shared or reused. */
#ifndef WEIR_FORWARD_RUNNER_H
#define WEIR_FORWARD_RUNNER_H

#include "forward/program.h"

struct runner;

struct runner_options {
    const struct column *column;
    uint32_t threads;
    uint32_t sequences, positions; /* how many, and how long each may grow */
    uint32_t rows, logits;         /* largest step */
    enum dtype kv_dtype;           /* DTYPE_F32, DTYPE_BF16 or DTYPE_FP8 */
    struct tuning *tuning;         /* NULL: all operations by default */
    struct gpu_device *device;     /* for column_gpu; outlives the runner */
};

weir_status runner_open(const struct model *m, const struct weights *w,
                        const struct runner_options *o, struct runner **out, weir_error *err);
void runner_close(struct runner *r);

/* The next n tokens of one sequence. */
struct runner_feed {
    uint32_t sequence;
    const int32_t *ids;
    uint32_t n;
    bool all_logits; /* of every row, else of the last one */
};
/* Runs one step over several different sequences (within rows and logits). Returns how many logits
 * rows there are: feeds of one token first, then the longer ones, each group in the given order. */
uint32_t runner_step(struct runner *r, const struct runner_feed *feeds, uint32_t n);
/* Feeds n tokens in steps of at most `chunk` rows and returns the logits of the last one. */
const float *runner_prefill(struct runner *r, uint32_t sequence, const int32_t *ids, uint32_t n,
                            uint32_t chunk);
const float *runner_logits(const struct runner *r, uint32_t i);
/* WEIR_OK, or why the first step that failed since the opening did: program_failure. */
weir_status runner_failure(const struct runner *r, weir_error *err);
void runner_reset(struct runner *r, uint32_t sequence);
/* For benches: every sequence is as long as if so many tokens had been fed, over a history and
 * states of seeded numbers. What a device's driver says. */
weir_status runner_invent(struct runner *r, uint32_t positions, weir_error *err);
/* Microseconds of a step on a device that is not made: program_time. */
weir_status runner_time(struct runner *r, const struct runner_feed *feeds, uint32_t n,
                        const struct device_timing *t, double *us, weir_error *err);
uint32_t runner_length(const struct runner *r, uint32_t sequence);

/* The recurrent state [heads][dim][dim] and the window [3][taps-1][heads*dim] of one KDA layer
 * (counted among KDA layers). Not on a device. */
const float *runner_state(const struct runner *r, uint32_t sequence, uint32_t kda_layer);
const float *runner_window(const struct runner *r, uint32_t sequence, uint32_t kda_layer);
struct step_program *runner_program(struct runner *r);

#endif
