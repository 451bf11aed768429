/* read_results.h: measured points from files of several tools in one form, for comparisons, the
 * frontier and reports.
 *
 *     a directory of a run (profile_export.jsonl in it), or one that holds such directories
 *     FILE.json  an InferenceX aggregate (object with "request_metrics"); flat rows (array, or
 *                object with "rows"); a result of vLLM's `bench serve` (object with
 *                "output_throughput")
 *     FILE.csv   a line of names, then rows; lines that begin with '#' are remarks
 *
 * Names in rows and CSV: label (or series), hw, framework, model, precision, spec, date, conc, isl,
 * osl, dataset, state, tp, pp, pcp_size, gpus, tput_per_gpu, output_tput_per_gpu,
 * input_tput_per_gpu, and {mean,median,p75,p90,p95,p99,std}_{ttft,tpot,itl,e2el,intvty}: seconds,
 * with "_ms" behind the name milliseconds; intvty in tokens/s/user. Others are ignored. */
#ifndef WEIR_TRACE_READ_RESULTS_H
#define WEIR_TRACE_READ_RESULTS_H

#include "trace/run.h"

enum statistic {
    STATISTIC_MEAN,
    STATISTIC_MEDIAN,
    STATISTIC_P75,
    STATISTIC_P90,
    STATISTIC_P95,
    STATISTIC_P99,
    STATISTIC_STD,
    STATISTICS,
};
const char *statistic_name(enum statistic s);

/* One measured point. Texts are "" and numbers NAN where the file does not tell. */
struct result_row {
    char label[128], hardware[64], framework[64], model[128], precision[32], spec[32], date[32];
    char workload[128]; /* "ISL/OSL" of fixed lengths, else the data set */
    char state[16];     /* of run_state; "": comparable, or the file does not tell */
    char source[256];   /* file or directory, cut at the front */
    double conc, gpus, isl, osl;
    double total_rate, out_rate, in_rate; /* tokens/s and GPU */
    /* seconds by statistic; interactivity in tokens/s/user. Of a missing one of tpot and intvty the
     * reciprocal of the other's same statistic stands, std left out. */
    double ttft[STATISTICS], tpot[STATISTICS], itl[STATISTICS], e2el[STATISTICS],
        intvty[STATISTICS];
};

/* Zero-initialise. */
struct results {
    struct result_row *row;
    size_t n, room;
};
/* Appends what `path` holds. `gpus`: of results that do not say how many (vLLM's); 0: then such a
 * file is refused. WEIR_BAD_FILE names file, row and field; WEIR_NO_MEMORY. What was there before
 * stays on failure. */
weir_status results_read(const char *path, uint32_t gpus, struct results *out, weir_error *err);
void results_free(struct results *l);
/* The row of a run in memory. */
void result_of_run(const struct run *r, const struct run_summary *s, const char *source,
                   struct result_row *out);

#endif
