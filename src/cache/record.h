/* record.h: how a page or a state reads outside of the process: free of how many ranks there were
 * and of how the pools are laid out, so that another server, or the same one with another
 * configuration, can use it.
 *
 * Page record: per MLA layer 64 positions of C+R values in the history's dtype, little endian: what
 * the pool holds.
 * State record: per KDA layer, per head: S [dim key][dim value] f32, then the window of that head,
 * [3 (q,k,v)][taps-1, oldest first][dim] f32. (In the pool the window is laid out over all heads.)
 */
#ifndef WEIR_CACHE_RECORD_H
#define WEIR_CACHE_RECORD_H

#include "cache/store.h"

struct record_shape {
    size_t page_bytes;                   /* one page record */
    uint32_t layers, heads, dim, window; /* of a state; window = taps - 1 */
};

/* Bytes of a state record and of the part of one layer. */
size_t record_state_bytes(const struct record_shape *s);
size_t record_layer_bytes(const struct record_shape *s);

/* Bytes of page `page` or slot `slot` as they lie in the pools; of a device's: addresses there. */
unsigned char *record_page(const struct cache_store *store, int32_t page);
unsigned char *record_slot(const struct cache_store *store, int32_t slot);

/* Between a page and its record, page_bytes long. False: a device failed. */
bool record_read_page(const struct cache_store *store, int32_t page, void *out);
bool record_write_page(const struct cache_store *store, int32_t page, const void *in);

/* Between a slot and the record of one layer (record_layer_bytes long). A device keeps windows as
 * BF16: what comes from elsewhere is rounded. False: a device failed. */
bool record_pack_layer(const struct record_shape *s, const struct cache_store *store, int32_t slot,
                       uint32_t layer, void *out);
bool record_unpack_layer(const struct record_shape *s, const struct cache_store *store,
                         int32_t slot, uint32_t layer, const void *in);

#endif
