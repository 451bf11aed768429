/* sampling_args.h: the options that say how to continue a prompt, shared by generate and chat. */
#ifndef WEIR_CLI_SAMPLING_ARGS_H
#define WEIR_CLI_SAMPLING_ARGS_H

#include "cli/options.h"
#include "weir.h"

struct sampling_args {
    uint32_t max_tokens, min_tokens;
    double temperature, top_p, min_p;
    int64_t top_k, seed;
    double repetition_penalty, frequency_penalty, presence_penalty;
    struct option_list stop;
};

enum { N_SAMPLING_OPTIONS = 11 };
extern const struct option_spec sampling_options[N_SAMPLING_OPTIONS];

weir_params sampling_args_params(const struct sampling_args *a);

#endif
