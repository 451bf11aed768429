/* presets.h: the published configurations, as the text of their config.json. */
#ifndef WEIR_MODEL_PRESETS_H
#define WEIR_MODEL_PRESETS_H

/* "kimi-k3" (with its vision tower), "kimi-linear", "mid" (a K3 of 12 layers and 470 MB) or "tiny"
 * (one of toy width); NULL for any other name. */
const char *model_preset(const char *name);

#endif
