/* measure_args.h: rows of the option table that commands which measure this machine share (bench
 * kernels, bench step, bench threads). OFFSET: of the field in the command's record. */
#ifndef WEIR_CLI_MEASURE_ARGS_H
#define WEIR_CLI_MEASURE_ARGS_H

#include "cli/options.h"

#define MEASURE_THREADS(OFFSET)                                                                    \
    {                                                                                              \
        .name = "threads", .value = "N", .type = OPTION_COUNT, .offset = (OFFSET), .min = 0,       \
        .max = 1024, .fallback = "0", .help = "Members of the team; 0: one for each core."         \
    }

/* WHAT: "each case". */
#define MEASURE_WAIT(OFFSET, WHAT)                                                                 \
    {                                                                                              \
        .name = "wait", .value = "SECONDS", .type = OPTION_REAL, .offset = (OFFSET), .min = 0,     \
        .max = 86400, .fallback = "0",                                                             \
        .help =                                                                                    \
            "Before " WHAT " wait for half a second in which nobody else uses the processor, at "  \
            "most so long."                                                                        \
    }

#define MEASURE_ISA(OFFSET)                                                                        \
    {                                                                                              \
        .name = "isa", .value = "NAME", .type = OPTION_TEXT, .offset = (OFFSET),                   \
        .fallback = "fastest",                                                                     \
        .help =                                                                                    \
            "Whose code is measured: exact; portable, avx2, avx512, avx512dots or amx, with f32 "  \
            "activations or, with -bf16 or -int8 behind the name, with those; or fastest, what "   \
            "an engine on this machine takes."                                                     \
    }

#define MEASURE_JSON(OFFSET)                                                                       \
    { .name = "json", .type = OPTION_FLAG, .offset = (OFFSET), .help = "Print one JSON object." }

#endif
