/* sampling_args.c: the sampling options as a table. */
#include "cli/sampling_args.h"

#include <string.h>

#define AT(field) offsetof(struct sampling_args, field)
#define NUMBER(NAME, FIELD, LOW, HIGH, FALLBACK, HELP)                                             \
    {                                                                                              \
        .name = NAME, .value = "X", .type = OPTION_REAL, .offset = AT(FIELD), .min = LOW,          \
        .max = HIGH, .fallback = FALLBACK, .help = HELP                                            \
    }

const struct option_spec sampling_options[] = {
    {.name = "max-tokens",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_tokens),
     .min = 0,
     .max = 4294967295.0,
     .fallback = "0",
     .help = "Tokens to generate at most; 0: to the end of the context."},
    {.name = "min-tokens",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(min_tokens),
     .min = 0,
     .max = 4294967295.0,
     .fallback = "0",
     .help = "Tokens before the answer may end."},
    NUMBER("temperature", temperature, 0, 2, "1",
           "Randomness of the choice; 0: always the most likely token."),
    {.name = "seed",
     .value = "S",
     .type = OPTION_INT,
     .offset = AT(seed),
     .min = -1,
     .max = 9223372036854775807.0,
     .fallback = "-1",
     .help = "Draws the same tokens again; -1: another seed every time."},
    NUMBER("top-p", top_p, 1e-9, 1, "1", "Choose among the likeliest tokens of this total share."),
    {.name = "top-k",
     .value = "N",
     .type = OPTION_INT,
     .offset = AT(top_k),
     .min = -1,
     .max = 2147483647.0,
     .fallback = "0",
     .help = "Choose among this many of the likeliest tokens; 0 or -1: all."},
    NUMBER("min-p", min_p, 0, 1, "0",
           "Leave out tokens less likely than this share of the likeliest one."),
    NUMBER("repetition-penalty", repetition_penalty, 1e-3, 100, "1",
           "Divides the chances of what was there before; 1: off."),
    NUMBER("frequency-penalty", frequency_penalty, -2, 2, "0",
           "Taken off for every time a token was generated."),
    NUMBER("presence-penalty", presence_penalty, -2, 2, "0",
           "Taken off once from a token that was generated."),
    {.name = "stop",
     .value = "TEXT",
     .type = OPTION_LIST,
     .offset = AT(stop),
     .help = "End the answer before this text; may be given several times."},
};

weir_params sampling_args_params(const struct sampling_args *a) {
    weir_params p = weir_params_default();
    p.max_tokens = a->max_tokens;
    p.min_tokens = a->min_tokens;
    p.temperature = (float)a->temperature;
    p.top_p = (float)a->top_p;
    p.top_k = (int32_t)a->top_k;
    p.min_p = (float)a->min_p;
    p.repetition_penalty = (float)a->repetition_penalty;
    p.frequency_penalty = (float)a->frequency_penalty;
    p.presence_penalty = (float)a->presence_penalty;
    p.has_seed = a->seed >= 0;
    p.seed = p.has_seed ? (uint64_t)a->seed : 0;
    return p;
}

static bool is_given(const struct sampling_args *a, const char *name) {
    for (size_t i = 0; i < N_SAMPLING_OPTIONS; i++)
        if (!strcmp(sampling_options[i].name, name))
            return a->given[i];
    return false;
}

void sampling_args_override(const struct sampling_args *a, weir_params *p) {
    weir_params own = sampling_args_params(a);
    if (is_given(a, "max-tokens"))
        p->max_tokens = own.max_tokens;
    if (is_given(a, "min-tokens"))
        p->min_tokens = own.min_tokens;
    if (is_given(a, "temperature"))
        p->temperature = own.temperature;
    if (is_given(a, "seed")) {
        p->has_seed = own.has_seed;
        p->seed = own.seed;
    }
    if (is_given(a, "top-p"))
        p->top_p = own.top_p;
    if (is_given(a, "top-k"))
        p->top_k = own.top_k;
    if (is_given(a, "min-p"))
        p->min_p = own.min_p;
    if (is_given(a, "repetition-penalty"))
        p->repetition_penalty = own.repetition_penalty;
    if (is_given(a, "frequency-penalty"))
        p->frequency_penalty = own.frequency_penalty;
    if (is_given(a, "presence-penalty"))
        p->presence_penalty = own.presence_penalty;
}

bool sampling_args_has_stop(const struct sampling_args *a) {
    return is_given(a, "stop");
}
