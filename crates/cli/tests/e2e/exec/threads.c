/* A server with a thread for each connection, which speaks as much of MySQL's
 * protocol as the preloaded library reads, and waits as MariaDB does: a look with
 * MSG_DONTWAIT, then poll. Small enough for valgrind, and it does on request what
 * a database does only in emergencies.
 *
 *     threads PORT [IDLE_MS]
 *
 * Every query is answered with OK and the number of connections that are served,
 * "closed" with how many statements were closed (which is not answered).
 * "begin" and "commit" open and end a transaction; "fork" leaves the connection
 * to a child process; "exec" runs another program; "shutdown" ends all others;
 * "signals" sends the server's own signal to the worker, and looks whether mask
 * and dispositions are still those that the server began with; "stray" answers
 * from less memory than it says, as a faulty server might. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4096 };

static atomic_int served, closed;
static atomic_bool open_at[MOST];
static int idle_ms = -1;

/* Fills a buffer; 0 if the client has gone or says nothing for too long. */
static int receive(int fd, unsigned char *to, size_t length)
{
    while (length > 0) {
        ssize_t got = recv(fd, to, length, MSG_DONTWAIT);
        if (got > 0) {
            to += got;
            length -= (size_t)got;
            continue;
        }
        if (got == 0 || (errno != EAGAIN && errno != EINTR))
            return 0;
        struct pollfd one = {.fd = fd, .events = POLLIN};
        int ready = poll(&one, 1, idle_ms);
        if (ready == 0 || (ready < 0 && errno != EINTR))
            return 0;
    }
    return 1;
}

static int reply(int fd, unsigned char sequence, const void *payload, unsigned char length)
{
    unsigned char packet[4 + 255] = {length, 0, 0, sequence};
    memcpy(packet + 4, payload, length);
    return send(fd, packet, 4u + length, MSG_NOSIGNAL) == 4 + length;
}

static int ok(int fd, unsigned char sequence, int in_transaction, atomic_int *count)
{
    unsigned char packet[7] = {0, (unsigned char)atomic_load(count), 0, 0, 0, 0, 0};
    packet[3] = in_transaction ? 1 : 2;
    return reply(fd, sequence, packet, sizeof packet);
}

static void answer_from_too_little(int fd)
{
    /* The compiler is not to know it. */
    static volatile size_t length = 11;
    unsigned char *packet = malloc(3);
    if (!packet)
        abort();
    memcpy(packet, "\7\0\0", 3);
    send(fd, packet, length, MSG_NOSIGNAL);
    free(packet);
}

static void shut_others(int own)
{
    for (int fd = 0; fd < MOST; fd++)
        if (fd != own && atomic_load(&open_at[fd]))
            shutdown(fd, SHUT_RDWR);
}

static void run_program(void)
{
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)0);
        _exit(1);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        abort();
}

/* What the server itself does about signals: it handles the highest but one, and
 * blocks the one below, each of which something else might have taken for free. */
static struct sigaction usual[128];
static sigset_t usual_mask;
static _Thread_local volatile sig_atomic_t heard;

static void hear(int number)
{
    (void)number;
    heard = heard + 1;
}

static void set_up_signals(void)
{
    struct sigaction own = {.sa_handler = hear};
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGRTMAX - 2);
    if (sigaction(SIGRTMAX - 1, &own, 0) || pthread_sigmask(SIG_BLOCK, &blocked, 0))
        abort();
    pthread_sigmask(SIG_BLOCK, 0, &usual_mask);
    for (int number = 1; number <= SIGRTMAX; number++)
        sigaction(number, 0, &usual[number]);
}

static void check_signals(void)
{
    sigset_t mask;
    int before = heard;
    if (raise(SIGRTMAX - 1) || heard != before + 1 || pthread_sigmask(SIG_BLOCK, 0, &mask))
        abort();
    for (int number = 1; number <= SIGRTMAX; number++) {
        struct sigaction now = {0};
        sigaction(number, 0, &now);
        if (now.sa_handler != usual[number].sa_handler ||
            now.sa_flags != usual[number].sa_flags ||
            sigismember(&mask, number) != sigismember(&usual_mask, number))
            abort();
    }
}

/* A child goes on with the connection; whether this is the child. */
static int leave_to_child(void)
{
    pid_t child = fork();
    if (child < 0)
        abort();
    return child == 0;
}

/* Queries until there are no more; whether this is a child by then. */
static int serve(int fd)
{
    unsigned char head[4], body[65536];
    int in_transaction = 0, is_child = 0;
    while (receive(fd, head, 4)) {
        size_t length = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16;
        if (length == 0 || length > sizeof body || !receive(fd, body, length))
            break;
        if (body[0] == 0x19) {
            atomic_fetch_add(&closed, 1);
            continue;
        }
        if (body[0] != 3)
            break;
        char *text = (char *)body + 1;
        length--;
        if (length == 5 && !memcmp(text, "begin", 5))
            in_transaction = 1;
        else if (length == 6 && !memcmp(text, "commit", 6))
            in_transaction = 0;
        else if (length == 8 && !memcmp(text, "shutdown", 8))
            shut_others(fd);
        else if (length == 4 && !memcmp(text, "exec", 4))
            run_program();
        else if (length == 7 && !memcmp(text, "signals", 7))
            check_signals();
        else if (length == 5 && !memcmp(text, "stray", 5))
            answer_from_too_little(fd);
        else if (length == 4 && !memcmp(text, "fork", 4)) {
            if (!leave_to_child())
                return 0;
            is_child = 1;
        }
        int asks_closed = length == 6 && !memcmp(text, "closed", 6);
        if (!ok(fd, 1, in_transaction, asks_closed ? &closed : &served))
            break;
    }
    return is_child;
}

static void *connection(void *argument)
{
    int fd = (int)(long)argument;
    static const unsigned char greeting[] = "\x0a" "5.5.5-threads";
    unsigned char head[4], body[256];
    atomic_fetch_add(&served, 1);
    atomic_store(&open_at[fd], 1);
    if (reply(fd, 0, greeting, sizeof greeting) && receive(fd, head, 4) && head[1] == 0 &&
        receive(fd, body, head[0]) && ok(fd, 2, 0, &served) && serve(fd))
        exit(0);
    atomic_store(&open_at[fd], 0);
    atomic_fetch_sub(&served, 1);
    close(fd);
    return 0;
}

static void *accepting(void *argument)
{
    int listener = (int)(long)argument;
    for (;;) {
        int fd = accept(listener, 0, 0);
        pthread_t thread;
        if (fd < 0 || fd >= MOST || pthread_create(&thread, 0, connection, (void *)(long)fd))
            abort();
        pthread_detach(thread);
    }
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    if (count > 2)
        idle_ms = atoi(arguments[2]);
    sigset_t end;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    set_up_signals();
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1, signal_number;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_port = htons((uint16_t)atoi(arguments[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 512))
        return 1;
    pthread_t thread;
    if (pthread_create(&thread, 0, accepting, (void *)(long)listener))
        return 1;
    sigwait(&end, &signal_number);
    exit(0);
}
