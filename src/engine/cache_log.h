/* cache_log.h: the line of --log-cache: what the cache gave one request, and why not more. */
#ifndef WEIR_ENGINE_CACHE_LOG_H
#define WEIR_ENGINE_CACHE_LOG_H

#include "engine/request.h"

enum { CACHE_LINE_BYTES = 640 };

/* Writes the line of a request that has just been admitted for the first time. `most`: how far it
 * might have resumed at the furthest. */
void cache_line(const struct cache_index *x, const struct weir_request *r, uint32_t most,
                char out[CACHE_LINE_BYTES]);

#endif
