/* disk_dir.h: the directory of a disk cache, which caches of several models may share: made with
 * care, and looked over for what the others hold. Inside of the cache room. */
#ifndef WEIR_CACHE_DISK_DIR_H
#define WEIR_CACHE_DISK_DIR_H

#include "base/error.h"

/* Makes `path` and the directory it stands in, but nothing above: a typing mistake, or a volume
 * that is not mounted, must not come to life as a path of its own. WEIR_BAD_FILE. */
weir_status disk_dir_make(const char *path, weir_error *err);

/* Says in one line which subdirectories of other models or settings stand beside `path`, and how
 * many bytes they take; nothing where there are none. */
void disk_dir_tell_others(const char *path);

#endif
