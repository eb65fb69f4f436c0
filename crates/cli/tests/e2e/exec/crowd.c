/* A server that holds tens of thousands of connections in one thread: as much of
 * MySQL's protocol as the preloaded library reads, each packet answered when it
 * has come.
 *
 *     crowd PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 1 << 16, EVENTS = 256, ROOM = 128 };

/* What has come of a connection's next packet. */
static struct {
    unsigned char packet[ROOM];
    size_t filled;
    int has_logged_in;
} all[MOST];

static int reply(int fd, unsigned char sequence, const void *payload, unsigned char length)
{
    unsigned char packet[4 + 255] = {length, 0, 0, sequence};
    memcpy(packet + 4, payload, length);
    return send(fd, packet, 4u + length, MSG_NOSIGNAL) == 4 + length;
}

static int answer(int fd)
{
    static const unsigned char ok[7] = {0, 0, 0, 2, 0, 0, 0};
    unsigned char sequence = all[fd].has_logged_in ? 1 : 2;
    if (all[fd].has_logged_in && all[fd].packet[4] != 3)
        return 0;
    all[fd].has_logged_in = 1;
    return reply(fd, sequence, ok, sizeof ok);
}

/* Takes in what has come; 0 if the connection is to be closed. */
static int take(int fd)
{
    unsigned char *packet = all[fd].packet;
    ssize_t got = recv(fd, packet + all[fd].filled, ROOM - all[fd].filled, 0);
    if (got <= 0)
        return 0;
    all[fd].filled += (size_t)got;
    while (all[fd].filled >= 4 && all[fd].filled >= 4u + packet[0]) {
        size_t length = 4u + packet[0];
        if (length > ROOM || length == 4 || !answer(fd))
            return 0;
        memmove(packet, packet + length, all[fd].filled - length);
        all[fd].filled -= length;
    }
    return all[fd].filled < ROOM;
}

/* Waits for it in this epoll, too; whether that can be done. */
static int watch(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void take_on(int epoll, int listener)
{
    static const unsigned char greeting[] = "\x0a" "5.5.5-crowd";
    int fd = accept(listener, 0, 0);
    if (fd < 0 || fd >= MOST)
        abort();
    memset(&all[fd], 0, sizeof all[fd]);
    if (!reply(fd, 0, greeting, sizeof greeting) || !watch(epoll, fd))
        close(fd);
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    sigset_t end;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, 0);
    int ending = signalfd(-1, &end, 0);
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1, epoll = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_port = htons((uint16_t)atoi(arguments[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 512))
        return 1;
    struct epoll_event events[EVENTS];
    if (!watch(epoll, listener) || !watch(epoll, ending))
        return 1;
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        for (int at_event = 0; at_event < ready; at_event++) {
            int fd = events[at_event].data.fd;
            if (fd == ending)
                exit(0);
            if (fd == listener)
                take_on(epoll, listener);
            else if (!take(fd))
                close(fd);
        }
    }
}
