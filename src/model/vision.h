/* vision.h: the size of the vision tower that a multimodal checkpoint carries. weir serves text
 * alone; the tower only has to be accounted for. */
#ifndef WEIR_MODEL_VISION_H
#define WEIR_MODEL_VISION_H

#include "model/json_fields.h"

/* Stored bytes of vision_tower.* and mm_projector.*, from the fields of vision_config inside
 * f->first; 0 where there is none. `text_hidden` is the width the projector ends in. A failure is
 * left in f. */
uint64_t model_vision_bytes(struct json_fields *f, uint32_t text_hidden);

#endif
