/* tuned.c: a program by a table of what is fastest here. Called when a program has been built. */
#include "base/log.h"
#include "base/plural.h"
#include "forward/program.h"

/* One row, for all operations it is about. */
static weir_status take_row(struct step_program *p, const struct tuning *t,
                            const struct tuning_row *row, weir_error *err) {
    uint32_t n;
    bool told = t->told;
    const struct op *op = program_ops(p, &n);
    for (uint32_t i = 0; i < n; i++) {
        if (!tuning_row_is_of(row, program_column(p), &op[i]))
            continue;
        uint8_t variant = column_variant(program_column(p), &op[i], row->rows, row->variant);
        if (!variant && !told)
            log_line(LOG_WARN, "tuning: %s: %s has no variant '%s' on %s rows: done by default",
                     t->path, op_name(row->kind), row->variant, row_class_name(row->rows));
        told |= !variant;
        weir_status s = variant ? program_choose(p, i, row->rows, variant, err) : WEIR_OK;
        if (s)
            return s;
    }
    return WEIR_OK;
}

weir_status program_tune(struct step_program *p, struct tuning *t, weir_error *err) {
    uint32_t n, served = 0;
    const struct op *op = program_ops(p, &n);
    for (uint32_t i = 0; i < t->n; i++) {
        weir_status s = take_row(p, t, &t->row[i], err);
        if (s)
            return s;
    }
    for (uint32_t i = 0; i < n; i++) {
        bool any = false;
        for (enum row_class c = 0; c < ROW_CLASSES; c++)
            any |= op[i].variant[c] != 0;
        served += any;
    }
    if (!t->told)
        log_line(LOG_INFO, "tuning: %s: %u of %u %s go by what was measured", t->path, served, n,
                 plural(n, "operation", "operations"));
    t->told = true;
    return WEIR_OK;
}
