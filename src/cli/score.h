/* score.h: compares a loaded model with golden numbers, case by case. */
#ifndef WEIR_CLI_SCORE_H
#define WEIR_CLI_SCORE_H

#include "cli/vectors.h"
#include "forward/runner.h"

struct score_settings {
    const struct model *model;
    const struct weights *weights;
    const struct column *column; /* of the fast run */
    bool fast; /* compare the fast column with the exact one, else the exact one with the files */
    uint32_t threads, rows; /* rows: largest step */
    enum dtype kv_dtype;
    struct gpu_device *device; /* of the fast run with column_gpu; NULL: this machine */
    struct tuning *tuning;     /* of the fast run; NULL: none */
};

/* One comparison: the largest error found beside its bound. */
struct score_check {
    char what[64];
    double error, bound;
    bool ok;
};

struct score_case {
    const char *name;
    size_t n_prompt, n_greedy;
    struct score_check *check;
    size_t n_checks;
    bool ok;             /* every check but the gap rule */
    bool keeps_gap_rule; /* the greedy continuation is as it must be */
    /* sums over the prompt, for the total of all cases */
    double nll, reference_nll;
    size_t nll_positions;
};

/* Runs one case. A failing check is no failure of the call; WEIR_BAD_FILE: the vectors. */
weir_status score_run(const struct score_settings *s, const struct vectors *v, const json_t *c,
                      struct score_case *out, weir_error *err);
void score_free(struct score_case *c);

#endif
