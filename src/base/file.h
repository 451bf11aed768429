/* file.h: whole files in memory, read or mapped. */
#ifndef WEIR_BASE_FILE_H
#define WEIR_BASE_FILE_H

#include "base/error.h"

#include <stddef.h>

/* Reads a regular file of at most `limit` bytes; the result has a NUL behind its last byte and is
 * freed with free(). WEIR_BAD_FILE when it is missing, not a regular file, unreadable or larger. */
weir_status file_read(const char *path, size_t limit, char **out, size_t *out_bytes,
                      weir_error *err);

/* A read-only mapping. Pages are shared with the page cache. */
struct mapping {
    const unsigned char *data;
    size_t bytes;
};
weir_status file_map(const char *path, struct mapping *out, weir_error *err);
void file_unmap(struct mapping *m);

/* dir + "/" + name in a new string, freed with free(); NULL without memory. */
char *file_join(const char *dir, const char *name);

/* Where files of the user belong by the specification of base directories: below the directory that
 * `variable` names if it is absolute, else below ~/home. NULL: neither is set, or no memory. */
char *file_user_path(const char *variable, const char *home, const char *name);
/* Makes the directories above `path` that are missing, for this user alone. */
weir_status file_make_directories(const char *path, weir_error *err);

#endif
