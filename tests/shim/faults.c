/* Faults for tests. Loaded into the command with LD_PRELOAD, it makes file operations fail or moves the clock, as
 * environment variables say. The command itself knows nothing of it.
 *
 * Which calls:
 *   SHIM_PATH     parts of paths, joined by ':'; only files whose path holds one of them are touched
 *   SHIM_CALLS    names joined by ',': open (for writing), write, sync, truncate, rename, link, mkdir, unlink, read
 *   SHIM_ERRNO    the number that they fail with
 * Instead of SHIM_CALLS, a disk that fills up:
 *   SHIM_ROOM     so many bytes may be added to matching files; then writes that would add more fail
 *   SHIM_REPORT   file that gets the number of added bytes when the process ends
 * The clock (CLOCK_REALTIME only; waiting goes by another one):
 *   SHIM_CLOCK    seconds added to it, at once or
 *   SHIM_CLOCK_AT ... from the first time on that a file with this part of a path is opened for writing or renamed
 * Waiting:
 *   SHIM_SLEEP    nanosleep takes so many times less
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static const char *paths, *calls, *report, *clock_at;
static int fault;
static long long room = -1, clock_seconds, sleep_divisor = 1;
static atomic_llong added;
static atomic_int clock_moved;

static long long number(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text ? atoll(text) : otherwise;
}

__attribute__((constructor)) static void read_settings(void) {
    paths = getenv("SHIM_PATH");
    calls = getenv("SHIM_CALLS");
    report = getenv("SHIM_REPORT");
    clock_at = getenv("SHIM_CLOCK_AT");
    fault = (int)number("SHIM_ERRNO", 0);
    room = number("SHIM_ROOM", -1);
    clock_seconds = number("SHIM_CLOCK", 0);
    sleep_divisor = number("SHIM_SLEEP", 1);
    atomic_store(&clock_moved, clock_at == NULL);
}

__attribute__((destructor)) static void write_report(void) {
    if (!report) return;
    FILE *file = fopen(report, "w");
    if (file) {
        fprintf(file, "%lld\n", (long long)atomic_load(&added));
        fclose(file);
    }
}

/* Is one of the words of `list` the word, or (parts) a part of it? */
static int listed(const char *list, char separator, const char *word, int parts) {
    while (list && *list) {
        const char *end = strchrnul(list, separator);
        char item[PATH_MAX];
        size_t length = (size_t)(end - list);
        if (length > 0 && length < sizeof item) {
            memcpy(item, list, length);
            item[length] = 0;
            if (parts ? strstr(word, item) != NULL : strcmp(word, item) == 0) return 1;
        }
        list = *end ? end + 1 : end;
    }
    return 0;
}

/* 1: the call must fail, errno is set. */
static int fails(const char *call, const char *path) {
    if (clock_at && strstr(path, clock_at) && (!strcmp(call, "open") || !strcmp(call, "rename") || !strcmp(call, "link")))
        atomic_store(&clock_moved, 1);
    if (!fault || room >= 0 || !listed(calls, ',', call, 0) || !listed(paths, ':', path, 1)) return 0;
    errno = fault;
    return 1;
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static int fd_fails(const char *call, int fd) {
    int before = errno, failed;
    char path[PATH_MAX];
    failed = path_of(fd, path) && fails(call, path);
    if (!failed) errno = before;
    return failed;
}

/* How many of `count` bytes at `offset` (-1: where the file stands) still find room; -1: none, errno is set. */
static ssize_t fitting(int fd, size_t count, off_t offset) {
    char path[PATH_MAX];
    struct stat found;
    if (room < 0 || count == 0 || !path_of(fd, path) || !listed(paths, ':', path, 1) || fstat(fd, &found) != 0 || !S_ISREG(found.st_mode))
        return (ssize_t)count;
    if (offset < 0) offset = fcntl(fd, F_GETFL) & O_APPEND ? found.st_size : lseek(fd, 0, SEEK_CUR);
    long long more = (long long)offset + (long long)count - (long long)found.st_size;
    if (more <= 0) return (ssize_t)count;
    long long left = room - atomic_fetch_add(&added, more);
    if (left >= more) return (ssize_t)count;
    long long fits = (long long)count - more + (left > 0 ? left : 0);
    if (fits > 0) return (ssize_t)fits;
    errno = fault ? fault : ENOSPC;
    return -1;
}

static int opens(const char *path, int flags) {
    int writing = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
    return writing ? fails("open", path) : fails("read", path);
}

#define OPEN(name)                                          \
    int name(const char *path, int flags, ...) {            \
        va_list more;                                       \
        va_start(more, flags);                              \
        mode_t mode = (mode_t)va_arg(more, int);            \
        va_end(more);                                       \
        return opens(path, flags) ? -1 : REAL(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                        \
    int name(int folder, const char *path, int flags, ...) { \
        va_list more;                                       \
        va_start(more, flags);                              \
        mode_t mode = (mode_t)va_arg(more, int);            \
        va_end(more);                                       \
        return opens(path, flags) ? -1 : REAL(name)(folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *bytes, size_t count) {
    if (fd_fails("write", fd)) return -1;
    ssize_t fits = fitting(fd, count, -1);
    return fits < 0 ? -1 : REAL(write)(fd, bytes, (size_t)fits);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (fd_fails("write", fd)) return -1;
    size_t total = 0;
    for (int i = 0; i < count; i++) total += parts[i].iov_len;
    ssize_t fits = fitting(fd, total, -1);
    if (fits < 0) return -1;
    if ((size_t)fits == total) return REAL(writev)(fd, parts, count);
    return REAL(write)(fd, parts[0].iov_base, (size_t)fits < parts[0].iov_len ? (size_t)fits : parts[0].iov_len);
}
#define PWRITE(name, offset_type)                                                   \
    ssize_t name(int fd, const void *bytes, size_t count, offset_type offset) {     \
        if (fd_fails("write", fd)) return -1;                                       \
        ssize_t fits = fitting(fd, count, (off_t)offset);                           \
        return fits < 0 ? -1 : REAL(name)(fd, bytes, (size_t)fits, offset);         \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t count, unsigned flags) {
    (void)from, (void)from_at, (void)to, (void)to_at, (void)count, (void)flags;
    errno = EXDEV; /* callers write the bytes themselves then */
    return -1;
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t count) {
    (void)to, (void)from, (void)at, (void)count;
    errno = EINVAL;
    return -1;
}

int fsync(int fd) { return fd_fails("sync", fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fd_fails("sync", fd) ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t size) { return fd_fails("truncate", fd) ? -1 : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return fd_fails("truncate", fd) ? -1 : REAL(ftruncate64)(fd, size); }
int rename(const char *from, const char *to) { return fails("rename", to) ? -1 : REAL(rename)(from, to); }
int link(const char *from, const char *to) { return fails("link", to) ? -1 : REAL(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    return fails("link", to) ? -1 : REAL(linkat)(a, from, b, to, flags);
}
/* What is there is answered as by a file system that cannot be written: first that it is there. */
int mkdir(const char *path, mode_t mode) {
    struct stat found;
    if (stat(path, &found) != 0 && fails("mkdir", path)) return -1;
    return REAL(mkdir)(path, mode);
}
int unlink(const char *path) { return fails("unlink", path) ? -1 : REAL(unlink)(path); }

int clock_gettime(clockid_t clock, struct timespec *time) {
    int answer = REAL(clock_gettime)(clock, time);
    if (answer == 0 && clock == CLOCK_REALTIME && atomic_load(&clock_moved)) time->tv_sec += clock_seconds;
    return answer;
}
int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    int answer = REAL(gettimeofday)(time, zone);
    if (answer == 0 && atomic_load(&clock_moved)) time->tv_sec += clock_seconds;
    return answer;
}

int nanosleep(const struct timespec *asked, struct timespec *left) {
    long long nanos = (asked->tv_sec * 1000000000LL + asked->tv_nsec) / sleep_divisor;
    struct timespec shorter = {nanos / 1000000000LL, nanos % 1000000000LL};
    return REAL(nanosleep)(&shorter, left);
}
