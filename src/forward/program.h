/* program.h: the step program, the only description of the model's arithmetic: a flat list of
 * operations built once per engine and run once per step. Columns execute it, tests count its
 * operations and bytes. */
#ifndef WEIR_FORWARD_PROGRAM_H
#define WEIR_FORWARD_PROGRAM_H

#include "base/team.h"
#include "load/tuning.h"
#include "load/weights.h"
#include "model/model.h"
#include "ops/ops.h"
#include "ops/sample.h"

/* The largest batch a program must hold. */
struct step_limits {
    uint32_t rows, logits;
    uint32_t position;  /* longest sequence in tokens */
    uint32_t sequences; /* of one batch; 0: as many as it has rows */
};

struct step_program;

/* Builds the program of `m` for `column`, with its step buffers and derived vectors. `kv` and
 * `state` are the pools the operations address and must outlive it. WEIR_UNSUPPORTED: the column
 * lacks an operation (message names it); WEIR_NO_MEMORY. */
weir_status program_build(const struct model *m, const struct weights *w,
                          const struct column *column, const struct kv_pool *kv,
                          const struct state_pool *state, struct step_limits limits,
                          uint32_t threads, struct step_program **out, weir_error *err);
void program_free(struct step_program *p);

/* Moves a program that was built for column_gpu to a device, which must outlive it: from then on
 * it runs there, and what it draws from is brought back. The pools are the device's. What
 * device_program_open says. */
struct gpu_device;
weir_status program_to_device(struct step_program *p, struct gpu_device *d, weir_error *err);

/* Runs one batch on the team (as many members as the program was built for). Afterwards the logits
 * are in program_logits and draws in program_results. The batch must be within the limits, and its
 * ids real ones: references to the step before are the executor's to resolve. */
void program_run(struct step_program *p, struct team *team, const struct batch *b);

/* WEIR_OK, or why the last run's results are worth nothing: an expert could not be read
 * (WEIR_BAD_FILE, with file and tensor), or the device failed. The next run is as good as any. */
weir_status program_failure(const struct step_program *p, weir_error *err);
/* The drawn or scored tokens of the last run, [n_logits]. */
const struct sample_result *program_results(const struct step_program *p);
/* Logits row i of the last run, [vocab]. */
const float *program_logits(const struct step_program *p, uint32_t i);
/* The list itself. */
const struct op *program_ops(const struct step_program *p, uint32_t *n);
const struct column *program_column(const struct step_program *p);

/* Operation i goes by this variant of the column on batches of this class from the next run on.
 * WEIR_NO_MEMORY: it needs more than could be had; nothing has changed. */
weir_status program_choose(struct step_program *p, uint32_t i, enum row_class rows, uint8_t variant,
                           weir_error *err);
/* Chooses what the table says, for every operation it knows. The first program of a table logs for
 * how many, and a line for each variant that the column lacks. WEIR_NO_MEMORY. */
weir_status program_tune(struct step_program *p, struct tuning *t, weir_error *err);

/* Tests read what flows between layers: called by member 0 behind the barrier of every operation
 * that has a name in the golden vectors ("embed", "layer3.attn_in", "layer3.attn_out",
 * "layer3.ffn_in", "layer3.ffn_out", "layer3.out", "final_hidden", "final_normed"). NULL: off. */
typedef void program_tap(void *arg, const char *name, struct tensor t, uint32_t rows);
void program_set_tap(struct step_program *p, program_tap *tap, void *arg);

/* Benches time operations: called by member 0 before operation i, behind the barrier of the one
 * before, and with the number of operations behind the last; the team is awake when it is first
 * called. Other members may have begun operation i. On a device operation i begins when it returns.
 * NULL: off. */
typedef void program_watch(void *arg, uint32_t i);
void program_set_watch(struct step_program *p, program_watch *watch, void *arg);

/* Of a program on a device: device_program_time (forward/device.h). */
struct device_timing;
weir_status program_time(struct step_program *p, const struct batch *b,
                         const struct device_timing *t, double *us, weir_error *err);

/* Sizes of the pools' units for a model. */
size_t program_kv_page_bytes(const struct model *m, enum dtype dtype);
size_t program_state_slot_floats(const struct model *m);
size_t program_state_layer_floats(const struct model *m);

#endif
