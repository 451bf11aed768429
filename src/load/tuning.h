/* tuning.h: the table of what was found fastest on this machine: for an operation of a shape, on
 * batches of a class of rows, a variant of its column (struct variant, ops/ops.h). `weir tune`
 * writes it, later starts read it (forward/program.h: program_tune). One JSON file:
 *   {"weir_tuning": 1, "weir": VERSION, "processor", "level", "threads",
 *    "rows": [{"column", "operation", "shape", "rows", "variant", "us", "default_us"}]}
 * A variant is known by its name, so that numbers may change; what has no row is done by default.
 */
#ifndef WEIR_LOAD_TUNING_H
#define WEIR_LOAD_TUNING_H

#include "ops/ops.h"

struct tuning_row {
    char column[32];
    enum op_kind kind;
    char shape[OP_SIGNATURE];
    enum row_class rows;
    char variant[32];
    double us, default_us; /* of all operations of that shape in a step, medians */
};
struct tuning {
    char path[4096];                          /* where it was read from */
    char weir[32], processor[128], level[16]; /* cpu_identity, cpu_level_name; or a device's */
    uint32_t threads;
    struct tuning_row *row;
    uint32_t n;
    bool told; /* a program has logged how much it takes from it */
};

/* An empty table of this machine, or of a device of that name; NULL without memory. */
struct tuning *tuning_new(uint32_t threads, const char *device);
/* Appends a row; false without memory. */
bool tuning_add(struct tuning *t, const struct tuning_row *row);
void tuning_free(struct tuning *t);

/* WEIR_BAD_FILE names file, field and rule. */
weir_status tuning_read(const char *path, struct tuning **out, weir_error *err);
/* Makes the directories above `path` and replaces the file by renaming one beside it. */
weir_status tuning_write(const struct tuning *t, const char *path, weir_error *err);

/* Was the table made by this version on such a machine, or such a device, with so many threads? If
 * not, *why says what differs, as the end of a sentence. */
enum { TUNING_WHY = 320 };
bool tuning_is_ours(const struct tuning *t, uint32_t threads, const char *device,
                    char why[TUNING_WHY]);

/* Is the row about this operation? */
bool tuning_row_is_of(const struct tuning_row *r, const struct column *c, const struct op *op);

/* What a table is made for, beside the machine. */
struct tuning_for {
    const char *model; /* directory */
    const struct column *column;
    enum dense_form dense;
    enum dtype kv;
    uint32_t threads;
    const char *device; /* its name; NULL: this machine computes */
};
/* Where the table of this model, these formats and this machine lies if nobody says otherwise:
 * below $XDG_CACHE_HOME or ~/.cache. NULL: neither is set (err filled), or config.json cannot be
 * read. Free with free(). */
char *tuning_default_path(const struct tuning_for *f, weir_error *err);

/* The table that a start uses. choice: "none" or NULL; "auto", the default place if a file is
 * there; or a file. *out is NULL where there is none to use: a table that is not ours is told of in
 * one line and left, a damaged one at the default place too. */
weir_status tuning_choose(const char *choice, const struct tuning_for *f, struct tuning **out,
                          weir_error *err);

#endif
