/* compare_args.c: options that compare, gate and history share. */
#include "cli/compare_args.h"

#include "bench/sweep.h"

#include <string.h>
#include <unistd.h>

const struct option_spec history_option[HISTORY_OPTIONS] = {
    {.name = "history",
     .value = "FILE",
     .type = OPTION_TEXT,
     .offset = offsetof(struct history_args, history),
     .help = "The run history, an SQLite file; without it $XDG_DATA_HOME/weir/bench.db or "
             "~/.local/share/weir/bench.db."},
    {.name = "no-history",
     .type = OPTION_FLAG,
     .offset = offsetof(struct history_args, no_history),
     .against = "history",
     .help = "Leave the run history alone."},
};

const struct option_spec statistics_option[STATISTICS_OPTIONS] = {
    {.name = "confidence",
     .value = "C",
     .type = OPTION_REAL,
     .offset = offsetof(struct statistics_args, confidence),
     .min = 0.5,
     .max = 0.9999,
     .fallback = "0.95",
     .help = "How often an interval is to hold the truth."},
    {.name = "seed",
     .value = "S",
     .type = OPTION_WIDE,
     .offset = offsetof(struct statistics_args, seed),
     .fallback = "42",
     .help = "Seed of the draws: the same seed gives the same intervals."},
    {.name = "draws",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = offsetof(struct statistics_args, draws),
     .min = 200,
     .max = 1000000,
     .fallback = "2000",
     .help = "How often the sessions are drawn anew."},
};

struct bootstrap_options statistics_of(const struct statistics_args *a) {
    return (struct bootstrap_options){
        .seed = a->seed, .draws = a->draws, .confidence = a->confidence};
}

weir_status history_args_open(const struct history_args *a, struct store **out, weir_error *err) {
    *out = NULL;
    if (a->no_history)
        return WEIR_OK;
    if (!a->history) {
        char *path = store_default_path();
        bool there = path && !access(path, F_OK);
        free(path);
        if (!there)
            return WEIR_OK;
    }
    return store_open(a->history, false, out, err);
}

bool names_sweep(const struct option_list *l) {
    bool found = false;
    for (size_t i = 0; i < l->n; i++)
        for (const char *p = l->item[i]; *p && !found;) {
            size_t n = strcspn(p, ",");
            char *one = strndup(p, n);
            found = one && sweep_is(one);
            free(one);
            p += n + (p[n] == ',');
        }
    return found;
}

weir_status metrics_of(const struct option_list *names, const struct metric *(*usual)(size_t),
                       const struct metric **out, size_t *n, weir_error *err) {
    *n = 0;
    for (size_t i = 0; i < names->n; i++) {
        const struct metric *m;
        weir_status status = metric_find(names->item[i], &m, err);
        if (status)
            return status;
        bool again = false;
        for (size_t k = 0; k < *n; k++)
            again = again || out[k] == m;
        if (!again)
            out[(*n)++] = m;
    }
    for (size_t i = 0; !names->n && usual(i); i++)
        out[(*n)++] = usual(i);
    return WEIR_OK;
}
