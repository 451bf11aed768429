/* turns.h: a bounded store of generated turns: key -> the ids that the model produced. Agents send
 * the whole conversation with every request; encoded anew, the model's own text can become other
 * ids than it was made of, and the prefix cache would miss from there on. What a key stands for is
 * the business of turns_chat.h.
 *
 * All functions may be called from any thread. A mutex is held for moments: to look up, to link, to
 * count; never while bytes of files move or are hashed. */
#ifndef WEIR_SERVE_TURNS_H
#define WEIR_SERVE_TURNS_H

#include "text/tokenizer.h"

#include <stdbool.h>

struct turns;

struct turns_key {
    unsigned char bytes[32];
};

struct turns_stats {
    size_t entries, bytes, limit_bytes; /* bytes: all that the entries take, keys included */
    uint64_t hits, misses, evictions;
};

/* Holds at most `limit_bytes`; the turns that were not used for longest go first. NULL without
 * memory. */
struct turns *turns_open(size_t limit_bytes);
/* Stops turns_keep, which saves once more if there is something new. NULL is allowed. */
void turns_close(struct turns *t);

/* Copies the ids; what the key stood for is replaced. A turn above the limit is not kept. */
void turns_put(struct turns *t, const struct turns_key *key, const int32_t *ids, size_t n);
/* Appends the ids of `key` and counts a hit, or counts a miss. The use is told by turns_touch. */
bool turns_get(struct turns *t, const struct turns_key *key, struct ids *out);
/* The turns of one conversation, the first one first, have been used: the first will go last, for
 * without it the others lead nowhere. */
void turns_touch(struct turns *t, const struct turns_key *keys, size_t n);
struct turns_stats turns_stats(struct turns *t);

/* ---- on disk ---- */

/* Writes all turns into a new file beside `path`, readable by the owner only, and puts it in the
 * place of `path`. WEIR_BAD_FILE names the file and the cause; the old file is then as it was. */
weir_status turns_save(struct turns *t, const char *path, weir_error *err);
/* Adds the turns of a file whose ids are all below `vocab`. A file that is not there holds none.
 * Damaged records are left out with one line in the log for all; a file of another kind or version
 * is WEIR_BAD_FILE and adds nothing. */
weir_status turns_load(struct turns *t, const char *path, uint32_t vocab, weir_error *err);
/* Gives what turns_load has refused another name beside it, `path`.old-N, which goes to `to` (cap
 * bytes). WEIR_BAD_FILE: it cannot be moved, and is where it was. */
weir_status turns_move_aside(const char *path, char *to, size_t cap, weir_error *err);
/* From now on saves to `path` every `seconds` when turns were added, and when `t` is closed, on a
 * thread of its own. Failures are logged. At most once per store. False without memory. */
bool turns_keep(struct turns *t, const char *path, double seconds);

#endif
