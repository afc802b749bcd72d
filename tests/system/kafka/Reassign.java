import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.common.TopicPartition;

/** What kafka-reassign-partitions.sh does, which is not among the jars here: BOOTSTRAP FILE. Ends when it is done. */
class Reassign {
    public static void main(String[] args) throws Exception {
        JsonNode plan = new ObjectMapper().readTree(new File(args[1]));
        if (plan.get("version").asInt() != 1) throw new IllegalArgumentException("version");
        Map<TopicPartition, Optional<NewPartitionReassignment>> wanted = new HashMap<>();
        for (JsonNode each : plan.get("partitions")) {
            List<Integer> replicas = new ArrayList<>();
            each.get("replicas").forEach(id -> replicas.add(id.asInt()));
            wanted.put(new TopicPartition(each.get("topic").asText(), each.get("partition").asInt()),
                Optional.of(new NewPartitionReassignment(replicas)));
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            admin.alterPartitionReassignments(wanted).all().get();
            while (!admin.listPartitionReassignments(wanted.keySet()).reassignments().get().isEmpty()) Thread.sleep(50);
        }
    }
}
