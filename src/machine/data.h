/* data.h: the tables in the program: files of src/machine as they stand there. Inside of the
 * machine room. */
#ifndef WEIR_MACHINE_DATA_H
#define WEIR_MACHINE_DATA_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

/* Text of price table i of the program; NULL behind the last. */
const char *data_price_table(size_t i, const char **name, size_t *bytes);
const char *data_gpus(size_t *bytes);

/* Checked reading; `where` names file and place. WEIR_BAD_FILE. */
weir_status data_parse(const char *text, size_t bytes, const char *path, json_t **out,
                       weir_error *err);
/* A number in (0, most]. Absent or null: NAN, and a failure where `required`. `scope` stands before
 * the name in messages: "machines.h100.". */
weir_status data_number(const json_t *object, const char *path, const char *scope, const char *name,
                        bool required, double most, double *out, weir_error *err);
/* A text of less than `cap` bytes. Absent and not required: "". */
weir_status data_text(const json_t *object, const char *path, const char *scope, const char *name,
                      bool required, char *out, size_t cap, weir_error *err);
/* A member that is none of `names` ("dollars, kilowatts") is refused: a misspelt one would silently
 * count as absent. */
weir_status data_no_others(const json_t *object, const char *path, const char *scope,
                           const char *names, weir_error *err);
/* The object `machines` of at least one member, each of which is an object with a name of 1 to 31
 * bytes. */
weir_status data_machines(const json_t *object, const char *path, const json_t **out,
                          weir_error *err);

#endif
