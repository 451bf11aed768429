/* gate.h: may a candidate pass: no figure worse than the baseline's by more than a threshold and
 * beyond noise, a run that was finished and is valid. */
#ifndef WEIR_BENCH_GATE_H
#define WEIR_BENCH_GATE_H

#include "bench/compare.h"

struct gate_rule {
    const struct metric *metric;
    double threshold; /* percent that it may be worse, >= 0 */
};
/* "NAME" or "NAME=PERCENT". WEIR_BAD_VALUE. */
weir_status gate_rule_parse(const char *text, double threshold, struct gate_rule *out,
                            weir_error *err);

enum gate_outcome {
    GATE_PASSED,
    GATE_REGRESSED,
    GATE_NO_VALUE,  /* the baseline has the figure and the candidate has not */
    GATE_SKIPPED,   /* the baseline has not */
    GATE_UNDECIDED, /* a regression beyond the resolution can be neither seen nor ruled out */
};

struct gate_result {
    struct comparison comparison;
    double threshold;
    /* How much worse in percent: by the figures, and at the least and at the most within the
     * interval (without one: the same). Negative: better. */
    double worse, worse_at_least, worse_at_most;
    bool has_interval;
    enum gate_outcome outcome;
};

struct gate {
    struct gate_result *result; /* one for each rule */
    size_t n;
    char **fault; /* why the candidate fails whatever its figures are */
    size_t n_faults;
    bool passed;
    bool undecided; /* not passed, and for no other reason than that figures are undecided */
};
/* How many percent of a rate may be lost and yet go unseen (50: half; of a latency: it may double):
 * a figure whose interval reaches further is undecided. */
#define GATE_RESOLUTION 50.0

/* The interval of each figure is widened to 1 - (1 - confidence) / n, so that the chance of any
 * false alarm is at most half of 1 - confidence. `allow_invalid`: a run that breaks the rules for
 * publishing may pass; a cancelled one never. `allow_different`: one of another workload or
 * concurrency than the baseline's may pass. */
weir_status gate_judge(const struct compare_side *baseline, const struct compare_side *candidate,
                       const struct gate_rule *rule, size_t n, const struct run_noise *noise,
                       const struct bootstrap_options *o, double resolution, bool allow_invalid,
                       bool allow_different, struct gate *out, weir_error *err);
void gate_free(struct gate *g);
void gate_print(FILE *out, const struct gate *g, const struct compare_side *baseline,
                const struct compare_side *candidate);
json_t *gate_json(const struct gate *g, const struct compare_side *baseline,
                  const struct compare_side *candidate, const struct bootstrap_options *o);

#endif
