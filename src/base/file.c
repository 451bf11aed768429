/* file.c: reads and maps files, and says where a user's belong. Called by many rooms. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static weir_status open_regular(const char *path, int *fd, size_t *bytes, weir_error *err) {
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not hang the
                                                              start */
    if (f < 0)
        return weir_fail(err, WEIR_BAD_FILE, path, "cannot be opened: %s", strerror(errno));
    struct stat st;
    if (fstat(f, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(f);
        return weir_fail(err, WEIR_BAD_FILE, path, "is not a regular file");
    }
    *fd = f;
    *bytes = (size_t)st.st_size;
    return WEIR_OK;
}

weir_status file_read(const char *path, size_t limit, char **out, size_t *out_bytes,
                      weir_error *err) {
    int fd;
    size_t bytes;
    *out = NULL;
    weir_status s = open_regular(path, &fd, &bytes, err);
    if (s)
        return s;
    if (bytes > limit) {
        close(fd);
        return weir_fail(err, WEIR_BAD_FILE, path, "has %zu bytes, at most %zu are allowed", bytes,
                         limit);
    }
    char *buffer = malloc(bytes + 1);
    if (!buffer) {
        close(fd);
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory for %zu bytes", bytes);
    }
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = read(fd, buffer + got, bytes - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    int e = errno;
    close(fd);
    if (got < bytes) {
        free(buffer);
        return weir_fail(err, WEIR_BAD_FILE, path, "read stopped at byte %zu of %zu: %s", got,
                         bytes, strerror(e));
    }
    buffer[bytes] = 0;
    *out = buffer;
    *out_bytes = bytes;
    return WEIR_OK;
}

weir_status file_map(const char *path, struct mapping *out, weir_error *err) {
    int fd;
    size_t bytes;
    *out = (struct mapping){0};
    weir_status s = open_regular(path, &fd, &bytes, err);
    if (s)
        return s;
    if (bytes == 0) {
        close(fd);
        return weir_fail(err, WEIR_BAD_FILE, path, "is empty");
    }
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    int e = errno;
    close(fd);
    if (p == MAP_FAILED)
        return weir_fail(err, WEIR_BAD_FILE, path, "cannot be mapped: %s", strerror(e));
    madvise(p, bytes, MADV_HUGEPAGE); /* helps where the file system supports it, ignored elsewhere
                                       */
    out->data = p;
    out->bytes = bytes;
    return WEIR_OK;
}

void file_unmap(struct mapping *m) {
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->bytes);
    *m = (struct mapping){0};
}

char *file_join(const char *dir, const char *name) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    char *path = malloc(n + strlen(name) + 2);
    if (path)
        sprintf(path, "%.*s/%s", (int)n, dir, name);
    return path;
}

char *file_user_path(const char *variable, const char *home, const char *name) {
    const char *base = getenv(variable), *user = getenv("HOME");
    char *path = NULL;
    if (base && base[0] == '/')
        return asprintf(&path, "%s/%s", base, name) < 0 ? NULL : path;
    if (user && user[0])
        return asprintf(&path, "%s/%s/%s", user, home, name) < 0 ? NULL : path;
    return NULL;
}

weir_status file_make_directories(const char *path, weir_error *err) {
    char part[PATH_MAX];
    for (const char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(p - path), path);
        if (mkdir(part, 0700) && errno != EEXIST)
            return weir_fail(err, WEIR_BAD_FILE, part, "cannot be made: %s", strerror(errno));
    }
    return WEIR_OK;
}
