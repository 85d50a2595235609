/* The wall clock of this process differs from the machine's by as many seconds as a table says: see wall_clocks.py. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead; /* seconds, by process id: a forked process has a clock of its own */
static int (*machine)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WALL_CLOCKS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    struct stat info;
    if (file < 0 || fstat(file, &info)) return;
    void *table = mmap(NULL, info.st_size, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (table != MAP_FAILED) ahead = table;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!machine) machine = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = machine(clock, now);
    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        now->tv_sec += ahead[getpid()];
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *told) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    if (told) *told = exact.tv_sec;
    return exact.tv_sec;
}
