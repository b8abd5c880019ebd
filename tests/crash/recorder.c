/* A recorder for LD_PRELOAD: writes down every change of the files below RECORD_ROOT, and every sync, in their order.
 *
 * RECORD_LOG    where to; a header (struct entry) each, with one or two names and the bytes written behind it
 * RECORD_SYNC   how long a sync takes at most, in microseconds; nothing is synced in fact, so that this is all it takes
 *
 * A change and its entry happen under one lock, so the order of entries is the order of changes. A sync has two entries:
 * what was changed before the first is safe once the second is there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS 65536

enum { CREATE = 1, MKDIR, UNLINK, RMDIR, RENAME, WRITE, TRUNCATE, SYNC, SYNC_RANGE, SYNC_ALL, SYNCED, UNKNOWN };

struct __attribute__((packed)) entry {
    uint64_t time_ns;
    uint8_t kind;
    uint64_t inode;       /* of the file or directory; for SYNCED the number of the sync */
    uint64_t parent;      /* the directory it is in */
    uint64_t target;      /* RENAME: the directory it goes to; SYNC: the number of the sync */
    int64_t position;
    uint64_t length;      /* of the bytes behind the names */
    uint16_t name, other; /* lengths of the names */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int log_fd = -1;
static char root[PATH_MAX];
static size_t root_length;
static unsigned sync_us;
static uint64_t syncs;
static uint64_t inodes[FDS]; /* of each open file below the root; 0 for all others */

static long raw_write(int fd, const void *data, size_t length) { return syscall(SYS_write, fd, data, length); }

static void begin(void) {
    const char *where = getenv("RECORD_ROOT"), *log = getenv("RECORD_LOG"), *us = getenv("RECORD_SYNC");
    if (!where || !log) return;
    strncpy(root, where, sizeof root - 1);
    root_length = strlen(root);
    sync_us = us ? (unsigned)atoi(us) : 0;
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_ours(const char *path) {
    pthread_once(&once, begin);
    return log_fd >= 0 && path && strncmp(path, root, root_length) == 0 && path[root_length] == '/';
}

static uint64_t inode_of(int fd) {
    pthread_once(&once, begin);
    return fd >= 0 && fd < FDS ? inodes[fd] : 0;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void put(struct entry *entry, const char *name, const char *other, const struct iovec *parts, int count) {
    struct iovec all[3] = {{entry, sizeof *entry}, {(void *)name, 0}, {(void *)other, 0}};
    entry->name = name ? (uint16_t)strlen(name) : 0;
    entry->other = other ? (uint16_t)strlen(other) : 0;
    all[1].iov_len = entry->name;
    all[2].iov_len = entry->other;
    syscall(SYS_writev, log_fd, all, 3);
    uint64_t left = entry->length;
    for (int i = 0; i < count && left; i++) {
        size_t length = parts[i].iov_len < left ? parts[i].iov_len : left;
        raw_write(log_fd, parts[i].iov_base, length);
        left -= length;
    }
}

static uint64_t inode_at(const char *path) {
    struct stat found;
    return lstat(path, &found) == 0 ? found.st_ino : 0;
}

static uint64_t parent_of(const char *path) {
    char copy[PATH_MAX];
    strncpy(copy, path, sizeof copy - 1);
    copy[sizeof copy - 1] = 0;
    return inode_at(dirname(copy));
}

static const char *name_in(const char *path) { return strrchr(path, '/') + 1; }

static void note(int kind, const char *path, uint64_t inode, uint64_t time_ns, uint64_t parent) {
    struct entry entry = {.time_ns = time_ns, .kind = (uint8_t)kind, .inode = inode, .parent = parent};
    put(&entry, name_in(path), 0, 0, 0);
}

static void note_unknown(const char *what) {
    struct entry entry = {.time_ns = now(), .kind = UNKNOWN};
    pthread_mutex_lock(&lock);
    put(&entry, what, 0, 0, 0);
    pthread_mutex_unlock(&lock);
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

static int open_ours(const char *path, int flags, mode_t mode) {
    pthread_mutex_lock(&lock);
    uint64_t time_ns = now(), before = inode_at(path);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode), failed = errno;
    if (fd >= 0) {
        struct stat found;
        fstat(fd, &found);
        if (fd < FDS) inodes[fd] = found.st_ino;
        if (!before) note(CREATE, path, found.st_ino, time_ns, parent_of(path));
        if (before && (flags & O_TRUNC)) note(TRUNCATE, path, found.st_ino, time_ns, 0);
    }
    pthread_mutex_unlock(&lock);
    errno = failed;
    return fd;
}

static int open_any(int at, const char *path, int flags, mode_t mode) {
    if (is_ours(path) || (log_fd >= 0 && path && strcmp(path, root) == 0)) return open_ours(path, flags, mode);
    int fd = (int)syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0 && fd < FDS) inodes[fd] = 0;
    return fd;
}

#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd) {
    if (inode_of(fd)) inodes[fd] = 0;
    return (int)syscall(SYS_close, fd);
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static void wait_for_disk(void) {
    if (sync_us) usleep((useconds_t)(sync_us / 8 + (unsigned)rand() % sync_us));
}

static void end_sync(uint64_t number) {
    struct entry entry = {.kind = SYNCED, .inode = number};
    pthread_mutex_lock(&lock);
    entry.time_ns = now();
    put(&entry, 0, 0, 0, 0);
    pthread_mutex_unlock(&lock);
}

static ssize_t write_ours(int fd, const struct iovec *parts, int count, off_t position, int flags) {
    pthread_mutex_lock(&lock);
    struct entry entry = {.time_ns = now(), .kind = WRITE, .inode = inodes[fd]};
    int is_synced = flags & (RWF_DSYNC | RWF_SYNC);
    if (position < 0) position = (fcntl(fd, F_GETFL) & O_APPEND) ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
    else flags |= 1 << 30;
    long written = flags & (1 << 30)
        ? syscall(SYS_pwritev2, fd, parts, count, position, 0, (flags & ~(1 << 30)) & ~(RWF_DSYNC | RWF_SYNC))
        : syscall(SYS_writev, fd, parts, count);
    int failed = errno;
    uint64_t number = 0;
    if (written > 0) {
        entry.position = position;
        entry.length = (uint64_t)written;
        put(&entry, 0, 0, parts, count);
        if (is_synced) {
            struct entry sync = {.time_ns = now(), .kind = SYNC_RANGE, .inode = inodes[fd], .position = position};
            sync.parent = (uint64_t)written;
            number = sync.target = ++syncs;
            put(&sync, 0, 0, 0, 0);
        }
    }
    pthread_mutex_unlock(&lock);
    if (number) {
        wait_for_disk();
        end_sync(number);
    }
    errno = failed;
    return written;
}

static ssize_t write_any(int fd, const struct iovec *parts, int count, off_t position, int flags) {
    if (inode_of(fd)) return write_ours(fd, parts, count, position, flags);
    if (position < 0) return syscall(SYS_writev, fd, parts, count);
    return syscall(SYS_pwritev2, fd, parts, count, position, 0, flags);
}

#define ONE struct iovec part = {(void *)data, length};
ssize_t write(int fd, const void *data, size_t length) {
    if (!inode_of(fd)) return raw_write(fd, data, length);
    ONE return write_ours(fd, &part, 1, -1, 0);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { ONE return write_any(fd, &part, 1, at, 0); }
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at) { ONE return write_any(fd, &part, 1, at, 0); }
ssize_t writev(int fd, const struct iovec *parts, int count) { return write_any(fd, parts, count, -1, 0); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return write_any(fd, parts, count, at, 0); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { return write_any(fd, parts, count, at, 0); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return write_any(fd, parts, count, at, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    return write_any(fd, parts, count, at, flags);
}

static int truncate_any(int fd, off_t length) {
    if (!inode_of(fd)) return (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&lock);
    struct entry entry = {.time_ns = now(), .kind = TRUNCATE, .inode = inodes[fd], .position = length};
    int result = (int)syscall(SYS_ftruncate, fd, length), failed = errno;
    if (result == 0) put(&entry, 0, 0, 0, 0);
    pthread_mutex_unlock(&lock);
    errno = failed;
    return result;
}
int ftruncate(int fd, off_t length) { return truncate_any(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncate_any(fd, length); }

/* -- names --------------------------------------------------------------------------------------------------------- */

static int rename_any(const char *from, const char *to) {
    int ours = is_ours(from), theirs = is_ours(to);
    if (!ours && !theirs) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (!ours || !theirs) note_unknown("a rename into or out of the directory");
    pthread_mutex_lock(&lock);
    struct entry entry = {.time_ns = now(), .kind = RENAME, .inode = inode_at(from), .parent = parent_of(from)};
    entry.target = parent_of(to);
    int result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0), failed = errno;
    if (result == 0) put(&entry, name_in(from), name_in(to), 0, 0);
    pthread_mutex_unlock(&lock);
    errno = failed;
    return result;
}
int rename(const char *from, const char *to) { return rename_any(from, to); }
int renameat(int at, const char *from, int to_at, const char *to) { (void)at, (void)to_at; return rename_any(from, to); }

static int remove_any(const char *path, int flags) {
    if (!is_ours(path)) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, flags);
    pthread_mutex_lock(&lock);
    uint64_t time_ns = now(), inode = inode_at(path), parent = parent_of(path);
    int result = (int)syscall(SYS_unlinkat, AT_FDCWD, path, flags), failed = errno;
    if (result == 0) note(flags ? RMDIR : UNLINK, path, inode, time_ns, parent);
    pthread_mutex_unlock(&lock);
    errno = failed;
    return result;
}
int unlink(const char *path) { return remove_any(path, 0); }
int rmdir(const char *path) { return remove_any(path, AT_REMOVEDIR); }
int unlinkat(int at, const char *path, int flags) {
    char whole[PATH_MAX];
    if (path[0] != '/' && at >= 0) { /* as shutil.rmtree does it */
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, whole, sizeof whole - 1);
        if (length > 0 && (size_t)length + 1 + strlen(path) < sizeof whole) {
            whole[length] = '/';
            strcpy(whole + length + 1, path);
            path = whole;
        }
    }
    if (path[0] == '/') return remove_any(path, flags);
    return (int)syscall(SYS_unlinkat, at, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    if (!is_ours(path)) return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    pthread_mutex_lock(&lock);
    uint64_t time_ns = now();
    int result = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode), failed = errno;
    if (result == 0) note(MKDIR, path, inode_at(path), time_ns, parent_of(path));
    pthread_mutex_unlock(&lock);
    errno = failed;
    return result;
}

/* -- syncs --------------------------------------------------------------------------------------------------------- */

static int sync_ours(int kind, uint64_t inode) {
    struct entry entry = {.kind = (uint8_t)kind, .inode = inode};
    pthread_mutex_lock(&lock);
    entry.time_ns = now();
    uint64_t number = entry.target = ++syncs;
    put(&entry, 0, 0, 0, 0);
    pthread_mutex_unlock(&lock);
    wait_for_disk();
    end_sync(number);
    return 0;
}
int fsync(int fd) { return inode_of(fd) ? sync_ours(SYNC, inodes[fd]) : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return inode_of(fd) ? sync_ours(SYNC, inodes[fd]) : (int)syscall(SYS_fdatasync, fd); }
int syncfs(int fd) { return inode_of(fd) ? sync_ours(SYNC_ALL, 0) : (int)syscall(SYS_syncfs, fd); }

/* -- what the broker does not use: it is noted, and the model refuses the recording ----------------------------------- */

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
int fallocate(int fd, int mode, off_t at, off_t length) {
    if (inode_of(fd)) note_unknown("fallocate");
    return (int)syscall(SYS_fallocate, fd, mode, at, length);
}
int posix_fallocate(int fd, off_t at, off_t length) {
    if (inode_of(fd)) note_unknown("posix_fallocate");
    return NEXT(posix_fallocate)(fd, at, length);
}
int truncate(const char *path, off_t length) {
    if (is_ours(path)) note_unknown("truncate");
    return (int)syscall(SYS_truncate, path, length);
}
int link(const char *from, const char *to) {
    if (is_ours(to)) note_unknown("link");
    return NEXT(link)(from, to);
}
int symlink(const char *from, const char *to) {
    if (is_ours(to)) note_unknown("symlink");
    return NEXT(symlink)(from, to);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags) {
    if (inode_of(out)) note_unknown("copy_file_range");
    return syscall(SYS_copy_file_range, in, from, out, to, length, flags);
}
ssize_t sendfile(int out, int in, off_t *at, size_t length) {
    if (inode_of(out)) note_unknown("sendfile");
    return syscall(SYS_sendfile, out, in, at, length);
}
void *mmap(void *where, size_t length, int protection, int flags, int fd, off_t at) {
    if (fd >= 0 && inode_of(fd) && (flags & MAP_SHARED) && (protection & PROT_WRITE)) note_unknown("mmap");
    return (void *)syscall(SYS_mmap, where, length, protection, flags, fd, at);
}
int dup(int fd) {
    if (inode_of(fd)) note_unknown("dup");
    return (int)syscall(SYS_dup, fd);
}
