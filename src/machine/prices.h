/* prices.h: what a GPU costs and draws, in named tables that are never mixed, and the arithmetic
 * of tokens, dollars and joules. Tables are data: src/machine/prices/NAME.json in the program,
 * or a file of the same form. */
#ifndef WEIR_MACHINE_PRICES_H
#define WEIR_MACHINE_PRICES_H

#include "base/error.h"

#include <stddef.h>

struct price_row {
    char machine[32]; /* "mi355x" */
    double dollars;   /* per GPU and hour */
    double kilowatts; /* all-in provisioned power of one GPU; NAN: the table does not say */
};

struct price_table {
    char name[64], source[256], date[16];
    struct price_row *row;
    size_t n;
};

/* `name` of a table in the program ("tco-2026-07-owning"), or the path of a JSON file where it
 * holds a '/' or ends in ".json". WEIR_BAD_VALUE lists the names there are; WEIR_BAD_FILE names
 * file, field and rule. */
weir_status price_table_open(const char *name, struct price_table *out, weir_error *err);
void price_table_free(struct price_table *t);
/* Names of the tables in the program, NULL at the end. */
const char *price_table_name(size_t i);
/* WEIR_BAD_VALUE lists the machines of the table. */
weir_status price_find(const struct price_table *t, const char *machine,
                       const struct price_row **out, weir_error *err);
/* The same by what a run says of itself: `hardware` may be NULL or empty, and the line then names
 * `run`, which lacks it. */
weir_status price_of_run(const struct price_table *t, const char *hardware, const char *run,
                         const struct price_row **out, weir_error *err);

/* What T tokens per second and GPU mean at a price. Undefined ones are NAN. */
struct cost {
    double tokens_per_dollar, dollars_per_million;
    double tokens_per_second_per_megawatt, joules_per_token;
};
struct cost cost_of(double tokens_per_second_per_gpu, double dollars_per_hour, double kilowatts);
/* a over b - 1, and what a saves: 1 - b / a. */
double cost_advantage(double tokens_per_dollar_a, double tokens_per_dollar_b);
double cost_saving(double tokens_per_dollar_a, double tokens_per_dollar_b);
/* Trapezoid over samples of watts at seconds; NAN with fewer than two. */
double energy_joules(const double *seconds, const double *watts, size_t n);

#endif
