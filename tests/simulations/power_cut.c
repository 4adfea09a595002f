/* A shim for LD_PRELOAD: it writes down, in order, what a process does to the files below POWER_CUT_FOLDER.

   A record in POWER_CUT_LOG is a line, then its data: kind, inode, offset, length and path of
   W a write, T a file's new length, S a sync of a file or a folder, R a rename (the old path is the data), U a removal.
   All inodes that it names stay open: or a removed file's number would be given to another, with what the first held. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int out = -1;
static ino_t kept[1 << 16];
static size_t count;
static const char *folder;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void put(const void *data, size_t size) {
    const char *at = data;
    while (size > 0) {
        ssize_t done = REAL(write)(out, at, size);
        if (done <= 0) abort();
        at += done;
        size -= (size_t)done;
    }
}

static int concerns(const char *path) {
    if (folder == NULL) folder = getenv("POWER_CUT_FOLDER");
    return folder != NULL && strncmp(path, folder, strlen(folder)) == 0;
}

static void keep(const char *path, ino_t inode) {
    for (size_t number = 0; number < count; number++)
        if (kept[number] == inode) return;
    if (count == sizeof kept / sizeof *kept || REAL(open)(path, O_RDONLY | O_CLOEXEC) < 0) abort();
    kept[count++] = inode;
}

static void note(char kind, const char *path, long long offset, const void *data, size_t size) {
    struct stat found;
    char line[4200];
    int length;
    memset(&found, 0, sizeof found);
    stat(path, &found);
    pthread_mutex_lock(&mutex);
    if (found.st_ino != 0) keep(path, found.st_ino);
    if (out < 0) out = REAL(open)(getenv("POWER_CUT_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    length = snprintf(line, sizeof line, "%c %llu %lld %zu %s\n", kind, (unsigned long long)found.st_ino, offset, size, path);
    put(line, (size_t)length);
    if (size > 0) put(data, size);
    pthread_mutex_unlock(&mutex);
}

static int path_of(int fd, char *path, size_t size) {
    char link[64];
    ssize_t length;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return concerns(path);
}

ssize_t write(int fd, const void *data, size_t size) {
    char path[4096];
    if (path_of(fd, path, sizeof path)) {
        long long at = lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
        ssize_t done = REAL(write)(fd, data, size);
        if (done > 0) note('W', path, at, data, (size_t)done);
        return done;
    }
    return REAL(write)(fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    char path[4096];
    ssize_t done = REAL(pwrite64)(fd, data, size, at);
    if (done > 0 && path_of(fd, path, sizeof path)) note('W', path, at, data, (size_t)done);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

int ftruncate64(int fd, off64_t size) {
    char path[4096];
    int failed = REAL(ftruncate64)(fd, size);
    if (!failed && path_of(fd, path, sizeof path)) note('T', path, size, NULL, 0);
    return failed;
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static void synced(int fd) {
    char path[4096];
    if (path_of(fd, path, sizeof path)) note('S', path, 0, NULL, 0);
}

int fsync(int fd) { synced(fd); return REAL(fsync)(fd); }

int fdatasync(int fd) { synced(fd); return REAL(fdatasync)(fd); }

int rename(const char *old, const char *new) {
    int failed = REAL(rename)(old, new);
    if (!failed && concerns(new)) note('R', new, 0, old, strlen(old));
    return failed;
}

int unlink(const char *path) {
    int failed = REAL(unlink)(path);
    if (!failed && concerns(path)) note('U', path, 0, NULL, 0);
    return failed;
}
