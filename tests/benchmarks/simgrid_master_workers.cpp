// The exchange of Ray's leases on SimGrid, for comparison: per task a worker asks the master, is
// told to go on, gets the task and says that it is over. Prints CPU seconds of the simulation.
//
//   simgrid_master_workers WORKERS TASKS
#include <simgrid/s4u.hpp>

#include <ctime>
#include <iostream>
#include <string>

namespace sg4 = simgrid::s4u;

static void worker(const std::string& name, int tasks)
{
  auto* mine = sg4::Mailbox::by_name(name);
  auto* master = sg4::Mailbox::by_name("master");
  for (int i = 0; i < tasks; i++) {
    master->put(new std::string(name), 2000); // request
    delete mine->get<std::string>();          // grant
    delete mine->get<std::string>();          // task
    master->put(new std::string(), 200);      // reply
  }
}

static void master(int exchanges)
{
  auto* mine = sg4::Mailbox::by_name("master");
  for (int i = 0; i < exchanges; i++) {
    auto* message = mine->get<std::string>();
    if (!message->empty()) {
      auto* to = sg4::Mailbox::by_name(*message);
      to->put_init(new std::string("grant"), 200)->detach();
      to->put_init(new std::string("task"), 1000)->detach();
    }
    delete message;
  }
}

int main(int argc, char** argv)
{
  sg4::Engine engine(&argc, argv);
  const int workers = std::stoi(argv[1]);
  const int tasks   = std::stoi(argv[2]);
  auto* root        = sg4::create_full_zone("cluster");
  auto* center      = root->create_host("center", 1e9);
  for (int i = 0; i < workers; i++) {
    auto name  = "worker-" + std::to_string(i);
    auto* host = root->create_host(name, 1e9);
    auto* link = root->create_link("link-" + std::to_string(i), 1.25e9);
    link->set_latency(1e-4)->set_sharing_policy(sg4::Link::SharingPolicy::FATPIPE)->seal();
    root->add_route(host->get_netpoint(), center->get_netpoint(), nullptr, nullptr,
                    {sg4::LinkInRoute(link)}, true);
    sg4::Actor::create(name, host, worker, name, tasks / workers);
  }
  sg4::Actor::create("master", center, master, tasks / workers * workers * 2);
  root->seal();
  const std::clock_t start = std::clock();
  engine.run();
  std::cout << double(std::clock() - start) / CLOCKS_PER_SEC << std::endl;
}
