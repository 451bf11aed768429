/* tune.h: `weir tune`: which variant of each operation is fastest on this machine, for the shapes
 * of a model. Runs the model's own step program with its own weights: all operations of one kind
 * and shape go by a variant together, variants and default take turns within a round, and
 * what wins is tried once more, beside the default alone. */
#ifndef WEIR_BENCH_TUNE_H
#define WEIR_BENCH_TUNE_H

#include "bench/kernels_idle.h"
#include "load/tuning.h"

#include <jansson.h>

/* A winner is faster by more than this part, and its third quartile is below the first of the
 * default; both twice: among all variants, and beside the default alone. */
#define TUNE_LEAST_GAIN 0.02
enum { TUNE_ROUNDS = 32 };

struct tune_options {
    struct tuning_for of;
    uint32_t prompt_tokens;    /* history of decode steps, at least 1 */
    uint32_t sequences;        /* that decode together, at most */
    uint32_t rows;             /* largest step of a prompt */
    uint32_t rounds;           /* 1 to TUNE_ROUNDS */
    struct gpu_device *device; /* for column_gpu; NULL: this machine computes */
    double wait_seconds;       /* before each round, for the machine to be idle; 0: none */
    void (*done)(void *arg, uint32_t done, uint32_t of); /* behind every round; NULL: nobody waits
                                                          */
    void *arg;
};

/* One kind and shape of operation, one class of rows. Times: of all such operations in a step. */
struct tune_row {
    enum op_kind kind;
    char shape[OP_SIGNATURE];
    enum row_class rows;
    uint32_t calls, tried; /* operations in a step; variants beside the default */
    double default_us, best_us;
    const char *best;    /* the fastest of all, perhaps "default" */
    const char *variant; /* the winner; NULL: the default stays */
};
/* Whole steps, everything by default and then by what won in them. */
struct tune_steps {
    bool decode;
    uint32_t rows;
    double default_ms, tuned_ms;
};
struct tune_report {
    struct tune_row *row;
    uint32_t n;
    struct tune_steps steps[2 * ROW_CLASSES];
    uint32_t n_steps;
    struct tuning *table; /* the winners */
    struct idle_share idle;
    bool quiet;
};

/* WEIR_BAD_FILE and what else opening a model gives; WEIR_NO_MEMORY. `out` is to be freed whatever
 * comes back. */
weir_status tune_measure(const struct tune_options *o, struct tune_report *out, weir_error *err);
void tune_free(struct tune_report *r);
/* `path`: where the table was written, or NULL. */
json_t *tune_json(const struct tune_options *o, const struct tune_report *r, const char *path);

#endif
