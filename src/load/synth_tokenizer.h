/* synth_tokenizer.h: a rank file and its configuration for a synthetic checkpoint, so that text
 * works on it. */
#ifndef WEIR_LOAD_SYNTH_TOKENIZER_H
#define WEIR_LOAD_SYNTH_TOKENIZER_H

#include "model/model.h"

enum { SYNTH_SPECIAL_IDS = 256, SYNTH_SMALLEST_VOCAB = 512 };

/* Writes DIR/tiktoken.model (vocab - 256 ranks) and DIR/tokenizer_config.json (the special ids of
 * the family behind them). */
weir_status synth_tokenizer(const char *dir, const struct model *m, weir_error *err);

#endif
