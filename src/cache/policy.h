/* policy.h: which KDA states are kept. A state costs as much memory as tens of thousands of tokens
 * of MLA history, and a prompt can only be resumed where one was left, so what to keep is a choice
 * with a name. Sources: docs/cache.md. */
#ifndef WEIR_CACHE_POLICY_H
#define WEIR_CACHE_POLICY_H

#include "base/error.h"

/* Why a state was kept. */
enum checkpoint_reason {
    CHECKPOINT_PROMPT,   /* the last boundary below the end of a prompt */
    CHECKPOINT_JUNCTION, /* where a prompt leaves the path of an earlier one */
    CHECKPOINT_TURN,     /* the last boundary of an answer: the next prompt will repeat it */
    CHECKPOINT_INTERVAL, /* every R tokens */
    CHECKPOINT_PREFILL,  /* where a prompt had come to when it was cut short; goes with PROMPT */
    CHECKPOINT_FETCHED,  /* came from a lower tier; no policy asks for it */
    CHECKPOINT_REASONS,
};
const char *checkpoint_reason_name(enum checkpoint_reason r);

enum { CHECKPOINT_DEFAULT_INTERVAL = 8192, CHECKPOINT_DEFAULT_REDERIVE = 128 };

struct checkpoint_policy {
    bool keeps[CHECKPOINT_REASONS];
    uint32_t interval; /* tokens, a multiple of 64; with CHECKPOINT_INTERVAL */
    /* A state that follows from an earlier one within this many tokens is evicted before others. */
    uint32_t rederive_tokens;
};

struct checkpoint_policy checkpoint_policy_default(void);
/* `text`: names joined by '+', each once, of end-of-prompt, junction, end-of-turn, interval:R and
 * default (all four, R = 8192 unless given beside it); or "none". NULL: default. WEIR_BAD_VALUE
 * names the part and what is allowed. */
weir_status checkpoint_policy_parse(const char *text, struct checkpoint_policy *out,
                                    weir_error *err);
/* Whether any state is kept for reuse; without, nothing is ever resumed from. */
bool checkpoint_policy_keeps_states(const struct checkpoint_policy *p);
/* The same as text, for logs. */
void checkpoint_policy_print(const struct checkpoint_policy *p, char *out, size_t size);

#endif
