/* disk_dir.c: makes and looks over the directory that holds the files of disk_file.c. Called when
 * the tier opens, on the thread that opens it. */
#include "cache/disk_dir.h"

#include "base/log.h"
#include "base/plural.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_NAMED = 4, NAME_DIGITS = 16 };

/* The end of the part of `path` before its last component, slashes at the end aside; 0: none. */
static size_t parent_end(const char *path, size_t n) {
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n;
}

static weir_status cannot(weir_error *err, const char *path) {
    return weir_fail(err, WEIR_BAD_FILE, path, "cannot make the directory: %s", strerror(errno));
}

weir_status disk_dir_make(const char *path, weir_error *err) {
    char part[PATH_MAX];
    const size_t n = strlen(path), top = parent_end(path, n), above = parent_end(path, top);
    struct stat st;
    if (n == 0 || n >= sizeof part)
        return weir_fail(err, WEIR_BAD_FILE, path, "is no directory name");
    memcpy(part, path, n + 1);
    part[top] = 0;
    if (top > 0 && mkdir(part, 0700) != 0 && errno != EEXIST) {
        const int why = errno;
        part[above] = 0;
        if (above > 0 && why == ENOENT && stat(part, &st) != 0)
            return weir_fail(err, WEIR_BAD_FILE, part,
                             "does not exist; only the last part of a cache's directory is made");
        errno = why;
        memcpy(part, path, n + 1);
        part[top] = 0;
        return cannot(err, part);
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST ? WEIR_OK : cannot(err, path);
}

/* Bytes that files take, in this directory and the ones in it that were moved aside. Closes fd. */
static uint64_t bytes_below(int fd, int depth) {
    uint64_t bytes = 0;
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if (e->d_name[0] == '.' || fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_blocks * 512;
        else if (S_ISDIR(st.st_mode) && depth > 0)
            bytes += bytes_below(
                openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), depth - 1);
    }
    closedir(d);
    return bytes;
}

void disk_dir_tell_others(const char *path) {
    char top[PATH_MAX], names[MOST_NAMED * (NAME_DIGITS + 2) + 8] = "";
    const size_t end = parent_end(path, strlen(path));
    if (end == 0 || end >= sizeof top)
        return;
    memcpy(top, path, end);
    top[end] = 0;
    const char *own = path + end + strspn(path + end, "/");
    DIR *d = opendir(top);
    if (!d)
        return;
    uint32_t n = 0;
    uint64_t bytes = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (strlen(e->d_name) != NAME_DIGITS ||
            strspn(e->d_name, "0123456789abcdef") != NAME_DIGITS || strcmp(e->d_name, own) == 0)
            continue;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        bytes += bytes_below(fd, 1);
        const size_t at = strlen(names);
        if (n < MOST_NAMED)
            snprintf(names + at, sizeof names - at, "%s%s", n ? ", " : "", e->d_name);
        else if (n == MOST_NAMED)
            snprintf(names + at, sizeof names - at, ", ...");
        n++;
    }
    closedir(d);
    if (n > 0)
        log_line(LOG_INFO,
                 "disk cache %s: beside it %" PRIu32 " of other models or settings %s %.1f MiB: "
                 "%s; the limit does not count them, and they may be deleted while nobody uses "
                 "them",
                 path, n, plural(n, "takes", "take"), (double)bytes / (1 << 20), names);
}
