import java.io.FileReader;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;

/** Logs in as Spark's Kafka client does, with the settings in a properties file: FILE. Prints the number of brokers. */
class Login {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(args[0])) {
            settings.load(file);
        }
        try (Admin admin = Admin.create(settings)) {
            System.out.println(admin.describeCluster().nodes().get().size());
        }
    }
}
