/* sampling_args.h: the options that say how to continue a prompt, shared by generate and chat. */
#ifndef WEIR_CLI_SAMPLING_ARGS_H
#define WEIR_CLI_SAMPLING_ARGS_H

#include "cli/options.h"
#include "weir.h"

enum { N_SAMPLING_OPTIONS = 11 };

struct sampling_args {
    bool given[N_SAMPLING_OPTIONS]; /* in the order of the rows */
    uint32_t max_tokens, min_tokens;
    double temperature, top_p, min_p;
    int64_t top_k, seed;
    double repetition_penalty, frequency_penalty, presence_penalty;
    struct option_list stop;
};

extern const struct option_spec sampling_options[N_SAMPLING_OPTIONS];

weir_params sampling_args_params(const struct sampling_args *a);
/* Sets in *p what was given, and nothing that is a default. */
void sampling_args_override(const struct sampling_args *a, weir_params *p);
bool sampling_args_has_stop(const struct sampling_args *a);

#endif
